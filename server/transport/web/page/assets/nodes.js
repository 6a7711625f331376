// The servers that share the store, and the store itself.
import {bytes, clockOf, count, duration, fill, h, limitAddress, percent, setText, table} from './dom.js';
import {problemsOf} from './problems.js';

export class NodesView {
  title = 'Nodes';

  constructor(context) {
    this.context = context;
    this.problems = h('div', {role: 'status'});
    this.store = h('dl.facts');
    this.self = h('dl.facts');
    this.note = h('p');
    this.nodes = h('tbody');
    this.differing = h('tbody');
    this.decided = h('tbody');
    this.nodeTable = table('Nodes', [{label: 'Node'}, {label: 'Heartbeat'}, {label: 'Shares of split limits', number: true}], this.nodes);
    this.differingPart = h('section', {'aria-label': 'Limits that differ between nodes'}, h('h2', {}, 'Limits that differ between nodes'),
      table('Limits that differ', [{label: 'Limit'}, {label: 'Here'}, {label: 'On another node'}, {label: 'Buckets converted', number: true}, {label: 'Last'}], this.differing));
    this.decidedPart = h('section', {'aria-label': 'Decided while the store was unavailable'}, h('h2', {}, 'Decided while the store was unavailable, since the server started'),
      table('Decided while the store was unavailable', [{label: 'Limit'}, {label: 'Let through', number: true}, {label: 'Refused', number: true}], this.decided));
    this.element = h('div', {}, h('h1', {tabindex: -1}, 'Nodes'), this.problems,
      h('div.columns', {},
        h('section', {'aria-label': 'Store'}, h('h2', {}, 'Store'), this.store),
        h('section', {'aria-label': 'This server'}, h('h2', {}, 'This server'), this.self)),
      h('h2', {}, 'Nodes on the store'), this.note, this.nodeTable, this.differingPart, this.decidedPart);
  }

  update() {
    const {model} = this.context;
    if (!model) return;
    const {config, now} = model;
    const store = config.store ?? {};
    const down = store.state === 'STATE_UNAVAILABLE';
    this.facts(this.store, [
      ['Kind', store.kind],
      ['State', down ? `unavailable since ${clockOf(store.since)}` : store.since ? `available since ${clockOf(store.since)}` : 'available'],
      store.kind === 'memory' ? null : ['Times unavailable', count(Number(store.timesUnavailable ?? 0))],
      store.lastError ? ['Last error', store.lastError] : null,
      ...(store.kind === 'memory' ? [
        ['Buckets', `${count(now.buckets)} of ${count(now.maxBuckets)} (${percent(now.buckets, now.maxBuckets)})`],
        ['Memory of the buckets', bytes(now.memoryBytes)],
        ['Open receipts', count(now.openReceipts)],
        ['Reservations', count(now.bookings)],
      ] : [
        ['Commands', count(now.commands)],
        ['Not answered in time', count(now.unanswered)],
        ['Answered with an error', count(now.errors)],
        ['Its clock was set', now.clockJumps === 1 ? 'once' : `${count(now.clockJumps)} times`],
      ]),
    ]);
    this.facts(this.self, [
      ['Version', model.version],
      ['Started', `${clockOf(new Date(model.startedAt * 1000))}, ${duration(model.at - model.startedAt)} ago`],
      ['Resident memory', bytes(now.residentBytes)],
      ...now.transports.map((one) => [`Connections, ${one.transport} port`, `${count(one.connections)}, ${count(one.streams)} open calls`]),
      ['Limits file', config.path ? `${config.path}, active since ${clockOf(config.activeSince)}, ${count(Number(config.reloads ?? 0))} loads, ${count(Number(config.failedReloads ?? 0))} refused` : 'none'],
    ]);
    this.updateTables(model, store);
  }

  updateTables(model, store) {
    const text = JSON.stringify([store, problemsOf(model)]);
    if (text === this.text) return;
    this.text = text;
    fill(this.problems, problemsOf(model).map((one) => h(`div.problem.${one.grade}`, {},
      h('strong', {}, one.grade === 'bad' ? 'Problem: ' : 'Note: '), one.text, one.detail ? h('div.detail', {}, one.detail) : null)));
    const nodes = store.nodes ?? [];
    setText(this.note, store.kind === 'memory' ? 'The buckets are in this server\'s own memory. It shares them with no other node.'
      : nodes.length === 0 ? 'No limit needs the list of nodes: all are exact, and none says on_store_failure: split.' : '');
    this.nodeTable.hidden = nodes.length === 0;
    fill(this.nodes, nodes.map((node) => h('tr', {}, h('th.key', {scope: 'row'}, node.id, node.self ? h('span.tag', {}, 'this one') : null),
      h(`td${node.lapsed ? '.bad' : ''}`, {}, node.lapsed ? 'stopped' : 'alive'),
      h('td.number', {}, node.divisor ? `1 of ${node.divisor}` : 'none yet'))));
    const differing = store.differing ?? [];
    this.differingPart.hidden = differing.length === 0;
    fill(this.differing, differing.map((one) => h('tr', {}, h('th', {scope: 'row'}, h('a', {href: limitAddress(one.limit)}, one.limit)),
      h('td', {}, one.ours), h('td', {}, one.theirs), h('td.number', {}, count(Number(one.times ?? 0))), h('td', {}, clockOf(one.lastAt)))));
    const decided = store.decidedWhileUnavailable ?? [];
    this.decidedPart.hidden = decided.length === 0;
    fill(this.decided, decided.map((one) => h('tr', {}, h('th', {scope: 'row'}, h('a', {href: limitAddress(one.limit)}, one.limit)),
      h('td.number', {}, count(Number(one.allowed ?? 0))), h('td.number', {}, count(Number(one.denied ?? 0))))));
  }

  facts(list, rows) {
    const shown = rows.filter((row) => row !== null);
    if (list.children.length !== shown.length) {
      fill(list, shown.map(([label]) => h('div', {}, h('dt', {}, label), h('dd'))));
    }
    shown.forEach(([label, value], i) => {
      setText(list.children[i].firstChild, label);
      setText(list.children[i].lastChild, String(value));
    });
  }

  destroy() {}
}
