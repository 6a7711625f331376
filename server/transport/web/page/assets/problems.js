// What an operator should look at first, from the worst down. Each: {grade: 'bad' or 'warn', text,
// detail, address, link}.
import {clockOf, count, limitAddress, percent} from './dom.js';
import {shareDenied} from './model.js';

const deniersNamed = 3;

const columnSince = (model, column, seconds) => {
  let sum = 0;
  for (let i = model.rows.length - 1; i >= 0 && model.rows[i][0] > model.at - seconds; --i) {
    sum += model.rows[i][column] ?? 0;
  }
  return sum;
};

const sentence = (text) => (text ? `${text.replace(/\.$/, '')}. ` : '');

export function problemsOf(model) {
  const found = [];
  const {config, now} = model;
  const store = config.store ?? {};
  if (store.state === 'STATE_UNAVAILABLE') {
    found.push({grade: 'bad', text: `The store (${store.kind}) is unavailable since ${clockOf(store.since)}.`,
      detail: `${sentence(store.lastError)}Each limit's on_store_failure decides meanwhile: ${unavailableText(store)}.`});
  } else if (store.timesUnavailable > 0 && model.at - Date.parse(store.since) / 1000 < 3600) {
    found.push({grade: 'warn', text: `The store (${store.kind}) was unavailable until ${clockOf(store.since)}${store.timesUnavailable > 1 ? `, ${count(store.timesUnavailable)} times since the server started` : ''}.`,
      detail: `${sentence(store.lastError)}Decided without it: ${unavailableText(store)}.`});
  }
  if (config.lastError) {
    found.push({grade: 'bad', text: `The limits file was refused at ${clockOf(config.lastErrorAt)}. The limits of ${clockOf(config.activeSince)} stay in force.`,
      detail: config.lastError});
  }
  const shed = columnSince(model, 6, 60);
  const shedHour = columnSince(model, 6, 3600);
  if (shed > 0) {
    found.push({grade: 'bad', text: `${count(shed)} calls were refused in the last minute: the server is overloaded.`,
      detail: 'They had waited too long for their turn. Nothing was taken for them.'});
  } else if (shedHour > 0) {
    found.push({grade: 'warn', text: `${count(shedHour)} calls were refused in the last hour because the server was overloaded.`});
  }
  const lapsed = (store.nodes ?? []).filter((node) => node.lapsed);
  if (lapsed.length > 0) {
    found.push({grade: 'bad', text: lapsed.length === 1 ? `Node ${lapsed[0].id} has stopped its heartbeats.` : `${lapsed.length} nodes have stopped their heartbeats.`, address: '#/nodes', link: 'See nodes'});
  }
  for (const one of store.differing ?? []) {
    found.push({grade: 'warn', text: `Limit ${one.limit} has other parameters on another node.`, detail: `Here ${one.ours}; there ${one.theirs}.`, address: '#/nodes', link: 'See nodes'});
  }
  found.push(...deniers(model));
  if (now.overflowDenied + now.overflowAllowed > 0 && now.buckets > 0.95 * now.maxBuckets) {
    found.push({grade: 'bad', text: `The table of buckets is full: ${count(now.buckets)} of ${count(now.maxBuckets)}.`,
      detail: `${count(now.overflowDenied)} acquisitions were denied and ${count(now.overflowAllowed)} let through because of that, since the server started.`});
  } else if (now.maxBuckets > 0 && now.buckets > 0.9 * now.maxBuckets) {
    found.push({grade: 'warn', text: `The table of buckets is nearly full: ${count(now.buckets)} of ${count(now.maxBuckets)} (${percent(now.buckets, now.maxBuckets)}).`});
  }
  if (now.refusedOverMemory > 0) {
    found.push({grade: 'warn', text: `${count(now.refusedOverMemory)} calls or connections were refused since the server started because their peers held too much memory.`});
  }
  return found.sort((a, b) => (b.grade === 'bad') - (a.grade === 'bad'));
}

// Limits that denied most of their requests in the last minute, and had more than one a second. The
// table has the numbers: a text that changed each second would be read out each second.
function deniers(model) {
  const names = Object.entries(model.limits)
    .filter(([, {minute}]) => shareDenied(minute) > 0.5 && minute[0] + minute[1] > 60)
    .map(([name]) => name).sort();
  const notes = names.slice(0, deniersNamed).map((name) => ({grade: 'warn',
    text: `Limit ${name} denied most of its requests in the last minute.`, address: limitAddress(name), link: 'See the keys'}));
  if (names.length > deniersNamed) {
    notes.push({grade: 'warn', text: `${count(names.length - deniersNamed)} more limits did so too.`});
  }
  return notes;
}

export function unavailableText(store) {
  let allowed = 0;
  let denied = 0;
  for (const one of store.decidedWhileUnavailable ?? []) {
    allowed += Number(one.allowed ?? 0);
    denied += Number(one.denied ?? 0);
  }
  return `${count(allowed)} let through, ${count(denied)} refused since the server started`;
}

export function storeText(model) {
  const store = model.config.store ?? {};
  if (store.state === 'STATE_UNAVAILABLE') return `${store.kind}: unavailable since ${clockOf(store.since)}`;
  return store.kind === 'memory' ? 'memory: available' : `${store.kind}: available since ${clockOf(store.since)}`;
}
