// One limit: what it decides, its parameters, and the keys that use it most.
import {call, history} from './api.js';
import {TimeChart, windowChoice} from './chart.js';
import {confirmDelete} from './dialogs.js';
import {allowsText, clockOf, count, duration, fill, h, keyAddress, keyed, keyName, limitAddress, percent, perSecond, rateText,
  secondsOf, setText, table} from './dom.js';
import {hour, outcomes, shareDenied} from './model.js';
import {estimate} from './overview.js';

const keysPauseMs = 5000;
const keysShown = 15;

const lowered = (value, prefix) => (value ?? '').replace(prefix, '').toLowerCase().replaceAll('_', ' ');
export const algorithmName = (value) => lowered(value ?? 'ALGORITHM_TOKEN_BUCKET', 'ALGORITHM_');

export function originText(limit) {
  if (limit.origin === 'ORIGIN_FILE') return `limits file, ${limit.definedAt}`;
  if (limit.origin === 'ORIGIN_ENVOY') return `Envoy's configuration, ${limit.definedAt}`;
  if (limit.expiresIn) {
    return `API${limit.definedAt ? `, over ${limit.definedAt}` : ''}, for another ${duration(secondsOf(limit.expiresIn))}`;
  }
  if (limit.origin === 'ORIGIN_ADMIN_OVER_FILE') return `API, over ${limit.definedAt} until that file or configuration next changes`;
  return 'API, until it is deleted or the server restarts';
}

// [label, value] of each parameter; values are texts or elements.
export function parametersOf(limit) {
  const rows = [
    ['Allows', `${allowsText(limit)} for each key`],
    ['Algorithm', algorithmName(limit.algorithm)],
  ];
  if ((limit.algorithm ?? 'ALGORITHM_TOKEN_BUCKET') === 'ALGORITHM_TOKEN_BUCKET') {
    rows.push(['Burst', `${count(Number(limit.burst ?? limit.rate?.permits ?? 0))} permits`]);
    if (Number(limit.debt ?? 0) > 0) rows.push(['Debt', `up to ${count(Number(limit.debt))} permits owed`]);
  }
  if (limit.algorithm === 'ALGORITHM_CONCURRENCY') rows.push(['Held for', `${duration(secondsOf(limit.holdFor ?? '30s'))} unless renewed`]);
  if (limit.maxOwed !== undefined) rows.push(['Forced debits', `may leave ${count(Number(limit.maxOwed))} permits owed`]);
  if (limit.subWindows) rows.push(['Sub-windows', count(limit.subWindows)]);
  if (limit.utcOffset) rows.push(['UTC offset', limit.utcOffset]);
  rows.push(['Mode', limit.mode === 'MODE_SHADOW' ? 'shadow: grants all, counts what it would deny' : 'enforce']);
  rows.push(['Origin', originText(limit)]);
  if (limit.reason) rows.push(['Reason', limit.reason]);
  if (limit.charges?.length > 0) {
    rows.push(['Also charges', limit.charges.map((name) => h('a.item', {href: limitAddress(name)}, name))]);
  }
  if (limit.maxWait) rows.push(['Longest wait', duration(secondsOf(limit.maxWait))]);
  if (limit.sharing && limit.sharing !== 'SHARING_EXACT') rows.push(['Sharing', lowered(limit.sharing, 'SHARING_')]);
  rows.push(['If the store is unavailable', lowered(limit.onStoreFailure, 'ON_STORE_FAILURE_') || 'deny']);
  if (limit.hashTag) rows.push(['Hash tag', limit.hashTag]);
  if (limit.minKeys) rows.push(['Room reserved for', `${count(Number(limit.minKeys))} keys`]);
  if (limit.direct === false) rows.push(['Requests', 'only other limits may charge it']);
  for (const one of limit.keys ?? []) {
    const own = [one.rate ? rateText(one.rate) : null, one.burst ? `burst ${count(Number(one.burst))}` : null,
      one.debt ? `debt ${count(Number(one.debt))}` : null, one.permits ? `${count(Number(one.permits))} at once` : null].filter((part) => part !== null);
    rows.push([h('span', {}, 'Key ', h('a', {href: keyAddress(limit.name, one.key ?? '')}, keyName(one.key ?? ''))), own.join(', ')]);
  }
  return rows;
}

export class LimitView {
  constructor(context, name) {
    this.context = context;
    this.name = name;
    this.title = `Limit ${name}`;
    this.problem = h('div', {role: 'status'});
    this.now = h('p.facts');
    this.parameters = h('dl.facts');
    this.granted = new TimeChart('Granted', [{label: 'Granted', color: 'granted'}]);
    this.others = new TimeChart('Not granted as usual', [
      {label: 'Denied', color: 'denied'},
      {label: 'Shadow: would be denied', color: 'shadow', dash: true},
      {label: 'Decided while the store was down', color: 'allowed'},
    ]);
    this.granted.partner = this.others;
    this.others.partner = this.granted;
    this.shadow = h('p');
    this.totals = h('dl.facts');
    this.byUse = h('tbody');
    this.byDenials = h('tbody');
    this.since = h('h2', {}, 'Keys');
    this.sketch = h('p.muted');
    const key = h('input', {id: 'key', type: 'text', autocomplete: 'off', spellcheck: 'false', maxlength: 512});
    const open = h('form.inline', {onsubmit: (event) => {
      event.preventDefault();
      location.hash = keyAddress(name, key.value);
    }}, h('label', {for: 'key'}, 'Look up a key'), key, h('button', {type: 'submit'}, 'Open'));
    this.element = h('div', {},
      h('p.path', {}, h('a', {href: '#/'}, 'Overview'), ' / limit'),
      h('div.heading', {}, h('h1', {tabindex: -1}, name),
        h('span.tools', {}, h('a.button', {href: `#/edit/${encodeURIComponent(name)}`}, 'Change'),
          h('button', {type: 'button', onclick: () => this.remove()}, 'Delete'))),
      this.problem, this.now,
      h('section', {'aria-label': 'Decisions per second'},
        h('div.heading', {}, h('h2', {}, 'Decisions per second'), windowChoice([this.granted, this.others])),
        this.granted.element, this.others.element),
      h('div.columns', {},
        h('section', {'aria-label': 'Parameters'}, h('h2', {}, 'Parameters'), this.parameters),
        h('section', {'aria-label': 'Shadow mode and totals'}, h('h2', {}, 'What shadow mode would deny'), this.shadow,
          h('h2', {}, 'Since the server started'), this.totals)),
      h('div.heading', {}, this.since, open),
      h('div.columns', {},
        h('section', {'aria-label': 'Top keys by use'}, h('h3', {}, 'By permits granted'),
          table('Top keys by use', [{label: 'Key'}, {label: 'Permits granted', number: true}, {label: 'Remaining', number: true}, {label: 'Waiting', number: true}], this.byUse)),
        h('section', {'aria-label': 'Top keys by denials'}, h('h3', {}, 'By denials'),
          table('Top keys by denials', [{label: 'Key'}, {label: 'Denied', number: true}, {label: 'Remaining', number: true}, {label: 'Waiting', number: true}], this.byDenials))),
      this.sketch);
    this.load();
    this.timer = setInterval(() => { if (!document.hidden) this.loadKeys(); }, keysPauseMs);
  }

  async load() {
    this.loading = true;
    try {
      const [limit, past] = await Promise.all([call('getLimit', {name: this.name}), history(this.name)]);
      this.limit = limit;
      this.past = past;
      this.rowsOf(past);
      fill(this.problem);
    } catch (error) {
      this.limit = null;
      fill(this.problem, h('div.problem.bad', {}, error.message));
    }
    this.loading = false;
    this.showParameters();
    this.update();
    this.loadKeys();
  }

  rowsOf(past) {
    const end = Math.round(past.at);
    const length = past.granted.length;
    this.second = past.second;
    this.rows = [[], []];
    for (let i = 0; i < length; ++i) {
      const time = new Date((end - (length - 1 - i)) * 1000);
      this.rows[0].push([time, past.granted[i]]);
      this.rows[1].push([time, past.denied[i], past.shadowDenied[i], past.withoutStore[i]]);
    }
  }

  showParameters() {
    if (!this.limit) return;
    fill(this.parameters, parametersOf(this.limit).map(([label, value]) =>
      h('div', {}, h('dt', {}, label), h('dd', {}, value))));
    if (this.past.series === 'other') {
      fill(this.problem, h('div.problem.warn', {}, h('strong', {}, 'Note: '),
        'More limits are in use than the server keeps a history of. The charts show the sum of the limits without one.'));
    }
  }

  // Called with each second of the stream, and after a reconnection.
  update(reconnected) {
    const {model} = this.context;
    if (!model) return;
    if (reconnected === 'model') {
      if (!this.loading) this.load();
      return;
    }
    const one = model.limits[this.name];
    const [granted, denied, shadow, without] = one?.minute ?? [0, 0, 0, 0];
    setText(this.now, `Last minute: ${count(granted + denied)} decisions (${perSecond((granted + denied) / 60)}), ` +
      `${percent(shareDenied([granted, denied]), 1)} denied${shadow > 0 ? `, ${percent(shadow, granted + denied)} would be denied` : ''}` +
      `${without > 0 ? `; the store was down for ${count(without)} charges` : ''}.`);
    this.append(model, one);
    this.showShadow();
  }

  append(model, one) {
    if (!this.rows || !this.limit) return;
    if (this.past.series === 'own' || one) {
      const t = this.rows[0].length > 0 ? this.rows[0][this.rows[0].length - 1][0].getTime() : 0;
      const time = new Date(model.rows[model.rows.length - 1][0] * 1000);
      if (model.second > this.second && time > t) {
        const last = one?.last ?? outcomes.map(() => 0);
        this.rows[0].push([time, last[0]]);
        this.rows[1].push([time, last[1], last[2], last[3]]);
        this.second = model.second;
      }
    }
    for (const rows of this.rows) while (rows.length > hour) rows.shift();
    this.granted.set(this.rows[0]);
    this.others.set(this.rows[1]);
  }

  showShadow() {
    if (!this.limit) return;
    let granted = 0;
    let denied = 0;
    let shadow = 0;
    for (const row of this.rows[0]) granted += row[1];
    for (const row of this.rows[1]) {
      denied += row[1];
      shadow += row[2];
    }
    const all = granted + denied;
    setText(this.shadow, this.limit.mode === 'MODE_SHADOW'
      ? `The limit is in shadow mode and denies nothing. Enforced, it would have denied ${count(shadow)} of ${count(all)} in the last hour (${percent(shadow, all)}).`
      : `The limit is enforced: it denied ${count(denied)} of ${count(all)} in the last hour (${percent(denied, all)}). In shadow mode it would grant and count them.`);
    const totals = this.past.totals;
    const facts = [
      ['Granted', `${count(totals.granted)}, ${count(totals.permitsGranted)} permits`],
      ['Denied', count(totals.denied)],
      ['Shadow: would be denied', count(totals.shadowDenied)],
      ['Refunded', `${count(totals.refundedPermits)} permits`],
      ['Store unavailable', `${count(totals.allowedWhileUnavailable)} let through, ${count(totals.deniedWhileUnavailable)} refused`],
      ['Table full', `${count(totals.overflowAllowed)} let through, ${count(totals.overflowDenied)} denied`],
      ['Denied: too many reservations', count(totals.bookingsDenied)],
    ];
    const text = JSON.stringify(facts);
    if (text === this.totalsText) return;
    this.totalsText = text;
    fill(this.totals, facts.map(([label, value]) => h('div', {}, h('dt', {}, label), h('dd', {}, value))));
  }

  async loadKeys() {
    if (!this.limit) return;
    try {
      const [use, denials, past] = await Promise.all([
        call('listKeys', {limit: this.name, order: 'ORDER_USE', maxKeys: keysShown}),
        call('listKeys', {limit: this.name, order: 'ORDER_DENIALS', maxKeys: keysShown}),
        history(this.name)]);
      this.past = past;
      this.showKeys(this.byUse, use.keys ?? [], 'No key has taken permits in these minutes.');
      this.showKeys(this.byDenials, denials.keys ?? [], 'No key was denied in these minutes.');
      setText(this.since, `Keys since ${clockOf(use.since)}`);
      setText(this.sketch, `Estimates of the last minutes, by a sketch (${use.sketch}).`);
    } catch (error) {
      setText(this.sketch, `The keys are not known: ${error.message}`);
    }
  }

  showKeys(body, keys, empty) {
    if (keys.length === 0) {
      body.keyedRows = undefined;
      fill(body, h('tr', {}, h('td.muted', {colspan: 4}, empty)));
      return;
    }
    if (!body.keyedRows) fill(body);
    keyed(body, keys, (one) => one.key ?? '', (one) => this.makeKey(one.key ?? ''), (row, one) => {
      setText(row.estimate, estimate(one));
      setText(row.remaining, one.bucketError ? 'not known'
        : `${count(Number(one.remaining ?? 0))} of ${count(Number(one.capacity ?? 0))}`);
      row.remaining.title = one.bucketError ?? '';
      setText(row.waiting, Number(one.waiting ?? 0) > 0
        ? `${count(Number(one.waiting))}, next in ${duration(secondsOf(one.nextGrantAfter))}` : '0');
    });
  }

  makeKey(key) {
    const row = {estimate: h('td.number'), remaining: h('td.number'), waiting: h('td.number')};
    row.element = h('tr', {}, h('th.key', {scope: 'row'}, h('a', {href: keyAddress(this.name, key)}, keyName(key))),
      row.estimate, row.remaining, row.waiting);
    return row;
  }

  async remove() {
    if (!this.limit) return;
    if (await confirmDelete(this.limit)) {
      await this.context.loadLimits();
      location.hash = '#/';
    }
  }

  destroy() {
    clearInterval(this.timer);
    this.granted.destroy();
    this.others.destroy();
  }
}
