// The overview: what is wrong, what is decided, and which limits deny.
import {Sparkline, TimeChart, windowChoice} from './chart.js';
import {allowsText, amount, bytes, clock, clockOf, count, duration, fill, h, keyAddress, keyed, keyName,
  limitAddress, percent, perSecond, setText, table} from './dom.js';
import {shareDenied} from './model.js';
import {problemsOf, storeText, unavailableText} from './problems.js';

const shownLimits = 50;
const sortPauseMs = 5000;

// A label and a value that changes.
class Tile {
  constructor(label, note) {
    this.value = h('dd', {}, '–');
    this.note = h('dd.note', {}, note ?? '');
    this.element = h('div.tile', {}, h('dt', {}, label), this.value, this.note);
  }
  set(value, note, grade) {
    setText(this.value, value);
    setText(this.note, note ?? '');
    this.element.className = grade ? `tile ${grade}` : 'tile';
  }
}

const columns = [
  {id: 'limit', label: 'Limit', of: (row) => row.name, text: true},
  {id: 'rate', label: 'Allows', wide: true},
  {id: 'decisions', label: 'Decisions/s', number: true, of: (row) => row.decisions},
  {id: 'deniedRate', label: 'Denied/s', number: true, of: (row) => row.deniedRate},
  {id: 'share', label: 'Share denied', number: true, of: (row) => row.share},
  {id: 'shadow', label: 'Would deny/s', number: true, wide: true, of: (row) => row.shadowRate},
  {id: 'spark', label: 'Share denied, last hour'},
];

// Whether it is the sum of the limits without a history of their own, and no limit.
const isSum = (name) => name.startsWith('(');

export class Overview {
  title = 'Overview';

  constructor(context) {
    this.context = context;
    this.sort = {id: 'share', down: true};
    this.filter = '';
    this.all = false;
    this.sortedAt = 0;
    this.order = [];
    this.problems = h('div', {id: 'problems', role: 'status'});
    this.tiles = {
      decisions: new Tile('Decisions'), denied: new Tile('Denied'), latency: new Tile('Call time, p99'),
      waiting: new Tile('Waiting callers'), shed: new Tile('Calls shed'), store: new Tile('Store'),
      buckets: new Tile('Buckets'), config: new Tile('Limits file'), nodes: new Tile('Nodes'),
    };
    this.granted = new TimeChart('Granted', [{label: 'Granted', color: 'granted'}]);
    this.others = new TimeChart('Not granted as usual', [
      {label: 'Denied', color: 'denied'},
      {label: 'Shadow: would be denied', color: 'shadow', dash: true},
      {label: 'Store down: let through', color: 'allowed'},
      {label: 'Store down: refused', color: 'refused', dash: true},
      {label: 'Shed', color: 'shed'},
    ]);
    this.granted.partner = this.others;
    this.others.partner = this.granted;
    this.body = h('tbody');
    this.more = h('button.quiet', {type: 'button', onclick: () => { this.all = !this.all; this.update(true); }});
    this.none = h('p.muted', {hidden: true}, 'No limit has such a name.');
    this.deniedHeading = h('h2', {}, 'Keys denied most');
    this.deniedKeys = h('tbody');
    this.build();
  }

  build() {
    const search = h('input', {type: 'search', id: 'filter', autocomplete: 'off', spellcheck: 'false',
      oninput: () => { this.filter = search.value; this.update(true); }});
    this.heads = columns.map((column) => {
      const kind = `th${column.number ? '.number' : ''}${column.wide ? '.wide' : ''}`;
      if (!column.of) return {column, element: h(kind, {scope: 'col'}, column.label)};
      const button = h('button.sort', {type: 'button', onclick: () => {
        const down = this.sort.id === column.id ? !this.sort.down : !column.text;
        this.sort = {id: column.id, down};
        this.update(true);
      }}, column.label);
      return {column, element: h(kind, {scope: 'col'}, button)};
    });
    this.element = h('div', {},
      h('h1', {tabindex: -1}, 'Overview'),
      this.problems,
      h('dl.tiles', {}, Object.values(this.tiles).map((tile) => tile.element)),
      h('section', {'aria-label': 'Decisions per second'},
        h('div.heading', {}, h('h2', {}, 'Decisions per second'), windowChoice([this.granted, this.others])),
        this.granted.element, this.others.element),
      h('section', {'aria-label': 'Limits'},
        h('div.heading', {}, h('h2', {}, 'Limits, by share denied in the last minute'),
          h('span.tools', {}, h('label', {for: 'filter'}, 'Find'), search,
            h('a.button', {href: '#/new'}, 'New limit'))),
        table('Limits', this.heads, this.body), this.none, this.more),
      h('section', {'aria-label': 'Keys denied most'},
        this.deniedHeading,
        table('Keys denied most', [{label: 'Key'}, {label: 'Limit'}, {label: 'Denied acquisitions', number: true}], this.deniedKeys)));
    // A row under the pointer or with the focus stays where it is.
    this.busy = false;
    for (const [on, busy] of [['pointerenter', true], ['focusin', true], ['pointerleave', false], ['focusout', false]]) {
      this.body.addEventListener(on, () => { this.busy = busy; });
    }
  }

  update(sortNow) {
    const {model, limits} = this.context;
    if (!model || model.rows.length === 0) return;
    this.updateProblems(model);
    this.updateTiles(model);
    this.updateCharts(model);
    const now = Date.now();
    if (sortNow || this.order.length === 0 || (!this.busy && now - this.sortedAt > sortPauseMs)) {
      this.sortedAt = now;
      this.sortLimits(model, limits);
    }
    this.updateLimits(model, limits);
    this.updateKeys(model);
  }

  updateProblems(model) {
    const found = problemsOf(model);
    const text = JSON.stringify(found);
    if (text === this.problemText) return;
    this.problemText = text;
    if (found.length === 0) {
      fill(this.problems, h('p.fine', {}, 'No problem found: the store is available, the limits file is active, no call was shed in the last hour, and no limit denies most of its requests.'));
      return;
    }
    fill(this.problems, found.map((one) => h(`div.problem.${one.grade}`, {},
      h('strong', {}, one.grade === 'bad' ? 'Problem: ' : 'Note: '), one.text,
      one.address ? h('a', {href: one.address}, one.link) : null,
      one.detail ? h('div.detail', {}, one.detail) : null)));
  }

  updateTiles(model) {
    const last = model.rows[model.rows.length - 1];
    const minute = [0, 0];
    for (let i = model.rows.length - 1; i >= 0 && model.rows[i][0] > model.at - 60; --i) {
      minute[0] += model.rows[i][1] ?? 0;
      minute[1] += model.rows[i][2] ?? 0;
    }
    const [, granted, denied, , , refused, shed, waiting, p99] = last;
    const {now, config} = model;
    const t = this.tiles;
    t.decisions.set(perSecond(granted + denied), `${perSecond(granted)} granted`);
    t.denied.set(percent(minute[1], minute[0] + minute[1]), `of the last minute; ${perSecond(denied)} now${refused > 0 ? `; ${perSecond(refused)} refused without the store` : ''}`,
      refused > 0 ? 'bad' : '');
    t.latency.set(p99 > 0 ? duration(p99 / 1e6) : '–', p99 > 0 ? 'in the server, with waiting' : 'no call ended in this second');
    t.waiting.set(count(waiting), 'held until their grant time');
    const shedMinute = model.rows.slice(-60).reduce((sum, row) => sum + (row[6] ?? 0), 0);
    t.shed.set(perSecond(shed), `${count(shedMinute)} in the last minute`, shedMinute > 0 ? 'bad' : '');
    const store = config.store ?? {};
    const down = store.state === 'STATE_UNAVAILABLE';
    t.store.set(down ? 'unavailable' : 'available', down ? unavailableText(store) : storeText(model), down ? 'bad' : '');
    // How many a shared store holds is not known.
    t.buckets.set(now.maxBuckets > 0 ? count(now.buckets) : `in ${store.kind}`, now.maxBuckets > 0
      ? `${percent(now.buckets, now.maxBuckets)} of the table; ${bytes(now.residentBytes)} resident` : `${bytes(now.residentBytes)} resident`);
    if (!config.path) t.config.set('none', `${count(config.limits ?? 0)} limits, by the API`);
    else if (config.lastError) t.config.set('refused', `at ${clockOf(config.lastErrorAt)}`, 'bad');
    else t.config.set('active', `since ${clockOf(config.activeSince)}; ${count(config.limits ?? 0)} limits${config.adminChanges ? `, ${config.adminChanges} changed by the API` : ''}`);
    const nodes = store.nodes ?? [];
    const lapsed = nodes.filter((node) => node.lapsed).length;
    t.nodes.set(count(Math.max(nodes.length, 1)), lapsed > 0 ? `${lapsed} without heartbeat` : nodes.length === 0 ? 'this one' : 'all have heartbeats', lapsed > 0 ? 'bad' : '');
  }

  updateCharts(model) {
    if (this.chartSecond === model.second && this.chartRows === model.rows) return;
    const fresh = this.chartRows !== model.rows;
    this.chartRows = model.rows;
    this.chartSecond = model.second;
    // The rows of the charts grow with those of the model.
    if (fresh) this.plotted = [[], []];
    const [granted, others] = this.plotted;
    const lastTime = granted.length > 0 ? granted[granted.length - 1][0].getTime() : 0;
    let from = model.rows.length;
    while (from > 0 && model.rows[from - 1][0] * 1000 > lastTime) --from;
    for (const row of model.rows.slice(from)) {
      const time = new Date(row[0] * 1000);
      granted.push([time, row[1]]);
      others.push([time, row[2], row[3], row[4], row[5], row[6]]);
    }
    while (granted.length > model.rows.length) {
      granted.shift();
      others.shift();
    }
    this.granted.set(granted);
    this.others.set(others);
  }

  rowOf(model, name) {
    const one = model.limits[name];
    if (!one) return {name, decisions: 0, deniedRate: 0, share: 0, shadowRate: 0};
    const [granted, denied, shadow, without] = one.minute;
    return {name, one, decisions: (granted + denied) / 60, deniedRate: denied / 60,
      share: shareDenied(one.minute), shadowRate: shadow / 60, without};
  }

  sortLimits(model, limits) {
    // A limit that was deleted is in the model for another hour.
    const used = Object.keys(model.limits).filter((name) => limits.size === 0 || limits.has(name) || isSum(name));
    const names = new Set([...limits.keys(), ...used]);
    const wanted = this.filter.toLowerCase();
    const column = columns.find((one) => one.id === this.sort.id);
    const way = this.sort.down ? -1 : 1;
    const rows = [...names].filter((name) => name.toLowerCase().includes(wanted)).map((name) => this.rowOf(model, name));
    rows.sort((a, b) => {
      const [x, y] = [column.of(a), column.of(b)];
      if (x !== y) return x < y ? -way : way;
      return b.shadowRate - a.shadowRate || b.decisions - a.decisions || (a.name < b.name ? -1 : 1);
    });
    this.found = rows.length;
    this.order = rows.map((row) => row.name);
    for (const {column: one, element} of this.heads) {
      if (one.id === this.sort.id) element.setAttribute('aria-sort', this.sort.down ? 'descending' : 'ascending');
      else element.removeAttribute('aria-sort');
    }
  }

  updateLimits(model, limits) {
    const shown = this.all ? this.order : this.order.slice(0, shownLimits);
    keyed(this.body, shown, (name) => name, (name) => this.makeRow(name), (row, name) => {
      const spec = limits.get(name);
      const now = this.rowOf(model, name);
      setText(row.rate, spec ? allowsText(spec) : '');
      setText(row.mode, spec?.mode === 'MODE_SHADOW' ? 'shadow' : '');
      setText(row.down, now.without > 0 ? 'store down' : '');
      row.down.title = now.without > 0 ? `${count(now.without)} charges in the last minute were decided by on_store_failure` : '';
      setText(row.decisions, amount(now.decisions));
      setText(row.deniedRate, amount(now.deniedRate));
      setText(row.share, percent(now.share, 1));
      row.share.className = `number${now.share >= 0.5 ? ' bad' : now.share > 0 ? ' some' : ''}`;
      setText(row.shadow, now.shadowRate > 0 ? amount(now.shadowRate) : '');
      const [granted, denied] = now.one ? now.one.minutes : [[], []];
      row.spark.set(granted, denied);
    });
    this.none.hidden = shown.length > 0;
    this.more.hidden = this.order.length <= shownLimits;
    setText(this.more, this.all ? `Show the first ${shownLimits}` : `Show all ${count(this.order.length)}`);
  }

  makeRow(name) {
    const row = {mode: h('span.tag', {}), down: h('span.tag.bad', {}), spark: new Sparkline()};
    for (const id of ['rate', 'decisions', 'deniedRate', 'share', 'shadow']) row[id] = h(`td.number`);
    row.rate.className = 'wide';
    row.shadow.className = 'number wide';
    row.element = h('tr', {},
      h('th', {scope: 'row'}, isSum(name) ? name : h('a', {href: limitAddress(name)}, name), ' ', row.mode, ' ', row.down),
      row.rate, row.decisions, row.deniedRate, row.share, row.shadow, h('td', {}, row.spark.element));
    return row;
  }

  updateKeys(model) {
    const keys = model.deniedKeys ?? [];
    setText(this.deniedHeading, `Keys denied most since ${clock(model.deniedSince)}`);
    const text = JSON.stringify(keys);
    if (text === this.keyText) return;
    this.keyText = text;
    if (keys.length === 0) {
      fill(this.deniedKeys, h('tr', {}, h('td.muted', {colspan: 3}, 'No key was denied in these minutes.')));
      return;
    }
    fill(this.deniedKeys, keys.map((one) => h('tr', {},
      h('th.key', {scope: 'row'}, h('a', {href: keyAddress(one.limit, one.key)}, keyName(one.key))),
      h('td', {}, h('a', {href: limitAddress(one.limit)}, one.limit)),
      h('td.number', {}, estimate(one)))));
  }

  destroy() {
    this.granted.destroy();
    this.others.destroy();
  }
}

// Of a sketch: the true number is from estimate - error to estimate.
export function estimate(one) {
  const most = Number(one.estimate);
  const error = Number(one.error ?? 0);
  if (error === 0) return count(most);
  return `${count(most - error)} to ${count(most)}`;
}
