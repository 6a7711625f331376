// One key, live: its bucket as the RPC Watch tells it.
import {call} from './api.js';
import {TimeChart} from './chart.js';
import {confirmReset} from './dialogs.js';
import {allowsText, clock, count, duration, fill, h, keyName, limitAddress, secondsOf, setText} from './dom.js';

const shownSeconds = 300;

export class KeyView {
  constructor(context, limit, key) {
    this.context = context;
    this.limit = limit;
    this.key = key;
    this.title = `Key ${keyName(key)} of ${limit}`;
    this.watches = [{limit, key}];
    this.problem = h('div', {role: 'status'});
    this.meter = h('meter', {min: 0, max: 1, 'aria-label': 'Share of the permits that remain'});
    this.remaining = h('span.big', {}, '–');
    this.of = h('span.muted');
    this.values = {};
    const fact = (id, label) => {
      this.values[id] = h('dd', {}, '–');
      return h('div', {}, h('dt', {}, label), this.values[id]);
    };
    const facts = h('dl.facts', {}, fact('next', 'Next permit'), fact('full', 'Full again'),
      fact('refill', 'Refill'), fact('waiting', 'Waiting callers'), fact('grant', 'Next grant time'),
      fact('receipts', 'Open receipts'),
      fact('source', 'Decided by'));
    this.chart = new TimeChart('Remaining permits', [{label: 'Remaining', color: 'granted'}],
      {unit: '', window: shownSeconds, step: true});
    this.rows = [];
    this.element = h('div', {},
      h('p.path', {}, h('a', {href: '#/'}, 'Overview'), ' / ', h('a', {href: limitAddress(limit)}, limit), ' / key'),
      h('div.heading', {}, h('h1', {tabindex: -1}, keyName(key)),
        h('span.tools', {}, h('button', {type: 'button', onclick: () => this.reset()}, 'Reset'))),
      this.problem,
      h('p', {}, this.remaining, ' ', this.of), this.meter,
      facts,
      h('section', {'aria-label': 'The last five minutes'}, h('h2', {}, 'The last five minutes'),
        this.chart.element, h('p.muted', {}, 'The chart begins when this page is opened.')));
    this.load();
  }

  async load() {
    try {
      this.spec = await call('getLimit', {name: this.limit});
      const own = (this.spec.keys ?? []).find((one) => (one.key ?? '') === this.key);
      const allowed = {...this.spec, ...own};
      setText(this.values.refill, own?.rate || own?.permits ? `${allowsText(allowed)} (its own)` : allowsText(this.spec));
    } catch (error) {
      fill(this.problem, h('div.problem.bad', {}, error.message));
    }
  }

  onBuckets(answer) {
    for (const bucket of answer.buckets ?? []) {
      if (bucket.limit !== this.limit || (bucket.key ?? '') !== this.key) continue;
      if (bucket.error) {
        fill(this.problem, h('div.problem.bad', {}, bucket.error.message));
        this.remember(null, answer.at);
        continue;
      }
      fill(this.problem);
      this.bucket = bucket;
      this.at = Date.parse(answer.at) / 1000;
      this.remember(Number(bucket.remaining ?? 0), answer.at);
    }
    this.update();
  }

  onWatchError(error) {
    fill(this.problem, h('div.problem.bad', {}, `This bucket cannot be watched: ${error.detail ?? error.title ?? 'no answer from the server'}`));
  }

  remember(value, at) {
    const time = new Date(Date.parse(at));
    const last = this.rows[this.rows.length - 1];
    if (!last || time > last[0]) this.rows.push([time, value]);
  }

  // The bucket's times, counted on since the server told them; and a point of the chart.
  update() {
    if (!this.bucket || !this.context.live) return;
    const {bucket} = this;
    const capacity = Number(bucket.capacity ?? 0);
    const remaining = Number(bucket.remaining ?? 0);
    const passed = Math.max((this.context.model?.at ?? this.at) - this.at, 0);
    const left = (text) => Math.max(secondsOf(text) - passed, 0);
    const when = (text) => (left(text) > 0
      ? `in ${duration(left(text))}, at ${clock(this.at + secondsOf(text))}` : 'now');
    setText(this.remaining, count(remaining));
    setText(this.of, `of ${count(capacity)} permits remain${remaining < 0 ? ` (${count(-remaining)} are owed)` : ''}${bucket.exists ? '' : '; the key was not used lately'}`);
    this.meter.max = Math.max(capacity, 1);
    this.meter.value = Math.max(remaining, 0);
    setText(this.values.next, when(bucket.nextPermitAfter));
    setText(this.values.full, left(bucket.resetAfter) > 0 ? when(bucket.resetAfter) : 'it is full');
    const waiting = Number(bucket.waiting ?? 0);
    setText(this.values.waiting, count(waiting));
    setText(this.values.grant, waiting > 0 ? when(bucket.nextGrantAfter) : 'no caller waits');
    const receipts = Number(bucket.openReceipts ?? 0);
    setText(this.values.receipts, receipts === 0 ? 'none'
      : `${count(receipts)}, which can give back ${count(Number(bucket.refundable ?? 0))} permits`);
    setText(this.values.source, {SOURCE_STORE_UNAVAILABLE: 'on_store_failure: the store is unavailable',
      SOURCE_LOCAL: 'this node, by its share'}[bucket.source] ?? 'the store');
    this.plot(remaining, capacity);
  }

  plot(remaining, capacity) {
    const now = new Date((this.context.model?.at ?? this.at) * 1000);
    const last = this.rows[this.rows.length - 1];
    if (!last || now > last[0]) this.rows.push([now, remaining]);
    while (this.rows.length > 0 && now - this.rows[0][0] > shownSeconds * 1000) this.rows.shift();
    this.chart.top = capacity;
    if (this.rows.length > 1) this.chart.set(this.rows);
  }

  async reset() {
    const existed = await confirmReset(this.limit, this.key, this.bucket);
    if (existed === null) return;
    fill(this.problem, h('p.fine', {}, existed ? 'The key was reset: its bucket is full.' : 'The bucket was full already: the store had no state of it.'));
  }

  destroy() {
    this.chart.destroy();
  }
}
