// The form that adds or changes a limit. Parameters that it does not show stay as they are.
import {call} from './api.js';
import {confirmPut} from './dialogs.js';
import {allowsText, count, definerOf, duration, fill, h, limitAddress, rateText, secondsOf} from './dom.js';
import {algorithmName} from './limit.js';

const units = [['second', 1], ['minute', 60], ['hour', 3600], ['day', 86400]];

// [option's value, text] of an enum's field.
const algorithms = ['ALGORITHM_TOKEN_BUCKET', 'ALGORITHM_SLIDING_LOG', 'ALGORITHM_SLIDING_WINDOW', 'ALGORITHM_FIXED_WINDOW',
  'ALGORITHM_CONCURRENCY'].map((value) => [value, algorithmName(value)]);
const modes = [['MODE_ENFORCE', 'enforce'], ['MODE_SHADOW', 'shadow: grant all, count what would be denied']];
const failures = [['ON_STORE_FAILURE_DENY', 'deny'], ['ON_STORE_FAILURE_ALLOW', 'allow'], ['ON_STORE_FAILURE_SPLIT', 'split: each node grants its share']];
const sharings = [['SHARING_EXACT', 'exact'], ['SHARING_SPLIT', 'split: each node grants its share'], ['SHARING_RELAXED', 'relaxed: each node decides, and reports']];

export class EditView {
  constructor(context, name) {
    this.context = context;
    this.name = name;  // '': a new limit
    this.title = name ? `Change ${name}` : 'New limit';
    this.fields = {};
    this.error = h('div', {role: 'alert'});
    this.form = h('div');
    this.element = h('div', {},
      h('p.path', {}, h('a', {href: '#/'}, 'Overview'), name ? [' / ', h('a', {href: limitAddress(name)}, name)] : null, name ? ' / change' : ' / new limit'),
      h('h1', {tabindex: -1}, this.title), this.error, this.form);
    this.load();
  }

  async load() {
    this.limit = {name: '', algorithm: 'ALGORITHM_TOKEN_BUCKET', rate: {permits: '', period: '1s'}};
    if (this.name) {
      try {
        this.limit = await call('getLimit', {name: this.name});
      } catch (problem) {
        fill(this.error, h('div.problem.bad', {}, problem.message));
        return;
      }
    }
    this.build();
  }

  // A field with its label, a hint, and room for the server's error.
  field(id, label, input, hint) {
    input.id = `field-${id}`;
    const error = h('span.error', {id: `error-${id}`});
    const about = h('span.hint', {id: `hint-${id}`}, hint ?? '');
    input.setAttribute('aria-describedby', `hint-${id} error-${id}`);
    this.fields[id] = {input, error};
    const row = h('div.field', {}, h('label', {for: input.id}, label), input, about, error);
    this.fields[id].row = row;
    return row;
  }

  number(value) {
    return h('input', {type: 'text', inputmode: 'numeric', autocomplete: 'off', value: value ?? ''});
  }

  choice(options, value) {
    return h('select', {}, options.map(([id, text]) => h('option', {value: id, selected: id === value}, text)));
  }

  build() {
    const {limit} = this;
    const rate = limit.rate ?? {permits: '', period: '1s'};
    const period = secondsOf(rate.period ?? '1s');
    const unit = units.findLast(([, seconds]) => period % seconds === 0) ?? ['second', 1];
    const periodInput = h('span.pair', {},
      this.periodCount = h('input', {type: 'text', inputmode: 'decimal', 'aria-label': 'Length of the period', value: String(period / unit[1])}),
      this.periodUnit = h('select', {'aria-label': 'Unit of the period'}, units.map(([text, seconds]) =>
        h('option', {value: seconds, selected: seconds === unit[1]}, seconds === 1 ? 'seconds' : `${text}s`))));
    const form = h('form.edit', {onsubmit: (event) => this.submit(event)},
      h('fieldset', {}, h('legend', {}, 'Limit'),
        this.field('name', 'Name', h('input', {type: 'text', autocomplete: 'off', spellcheck: 'false', value: limit.name, readonly: this.name !== ''}),
          'Letters, digits and - _ . : / @'),
        this.field('rate.permits', 'Permits', this.number(rate.permits), 'How many permits each key may take in a period'),
        this.pairField('rate.period', 'per', periodInput),
        this.field('algorithm', 'Algorithm', this.choice(algorithms, limit.algorithm)),
        this.field('permits', 'Slots', this.number(limit.permits), 'How many permits of each key may be in use at the same time'),
        this.field('hold_for', 'Held for', h('input', {type: 'text', value: limit.holdFor ?? ''}), 'Unless it is renewed, as 90s. Empty: 30 s'),
        this.field('burst', 'Burst', this.number(limit.burst), 'Most permits that a bucket holds. Empty: the permits of a period'),
        this.field('debt', 'Debt', this.number(limit.debt), 'Most permits that a bucket may owe. Empty: 0'),
        this.field('sub_windows', 'Sub-windows', this.number(limit.subWindows), 'Empty: 10'),
        this.field('utc_offset', 'UTC offset', h('input', {type: 'text', value: limit.utcOffset ?? ''}), 'In seconds, as -18000s. Empty: 0'),
        this.field('mode', 'Mode', this.choice(modes, limit.mode))),
      h('fieldset', {}, h('legend', {}, 'More'),
        this.field('charges', 'Also charges', h('input', {type: 'text', autocomplete: 'off', spellcheck: 'false', value: (limit.charges ?? []).join(' ')}),
          'Names of limits whose shared bucket every acquisition charges too'),
        this.field('max_wait', 'Longest wait', h('input', {type: 'text', value: limit.maxWait ?? ''}), 'How far ahead a reservation may lie, as 90s. Empty: 1 h'),
        this.field('on_store_failure', 'If the store is unavailable', this.choice(failures, limit.onStoreFailure)),
        this.field('sharing', 'Sharing between nodes', this.choice(sharings, limit.sharing))),
      this.overrides(),
      h('p.actions', {}, h('a.button', {href: this.name ? limitAddress(this.name) : '#/'}, 'Cancel'),
        h('button.primary', {type: 'submit'}, 'Continue')));
    fill(this.form, form);
    this.fields.algorithm.input.addEventListener('change', () => this.showFields());
    this.showFields();
  }

  pairField(id, label, pair) {
    const error = h('span.error', {id: `error-${id}`});
    this.periodCount.setAttribute('aria-describedby', `error-${id}`);
    this.periodCount.id = `field-${id}`;
    const row = h('div.field', {}, h('label', {for: this.periodCount.id}, label), pair, h('span.hint'), error);
    this.fields[id] = {input: this.periodCount, error, row};
    return row;
  }

  showFields() {
    const algorithm = this.fields.algorithm.input.value;
    const only = {burst: 'ALGORITHM_TOKEN_BUCKET', debt: 'ALGORITHM_TOKEN_BUCKET',
      sub_windows: 'ALGORITHM_SLIDING_WINDOW', utc_offset: 'ALGORITHM_FIXED_WINDOW',
      permits: 'ALGORITHM_CONCURRENCY', hold_for: 'ALGORITHM_CONCURRENCY'};
    for (const [id, owner] of Object.entries(only)) this.fields[id].row.hidden = owner !== algorithm;
    for (const id of ['rate.permits', 'rate.period']) this.fields[id].row.hidden = algorithm === 'ALGORITHM_CONCURRENCY';
  }

  // Parameters of single keys.
  overrides() {
    this.keys = h('tbody');
    for (const one of this.limit.keys ?? []) this.addKey(one);
    this.fields.keys = {input: this.keys, error: h('span.error')};
    return h('fieldset', {}, h('legend', {}, 'Parameters of single keys'),
      h('div.scroll', {tabindex: 0, role: 'group', 'aria-label': 'Parameters of single keys'}, h('table', {}, h('thead', {}, h('tr', {}, ['Key', 'Rate', 'Burst', 'Debt', 'Slots', 'Remove'].map((text) => h('th', {scope: 'col'}, text)))), this.keys)),
      h('p', {}, h('button', {type: 'button', onclick: () => this.addKey({}).focus()}, 'Add a key'),
        h('span.hint', {}, ' Rate as 100/s or 5000/3600s. Empty: as the limit')),
      this.fields.keys.error);
  }

  addKey(one) {
    const inputs = [['key', one.key ?? ''], ['rate', one.rate ? `${one.rate.permits}/${one.rate.period ?? '1s'}` : ''],
      ['burst', one.burst ?? ''], ['debt', one.debt ?? ''], ['slots', one.permits ?? '']].map(([label, value]) =>
      h('input', {type: 'text', 'aria-label': `${label} of the key`, autocomplete: 'off', spellcheck: 'false', value}));
    const row = h('tr', {}, inputs.map((input) => h('td', {}, input)),
      h('td', {}, h('button', {type: 'button', 'aria-label': 'Remove this key', onclick: () => row.remove()}, '×')));
    row.inputs = inputs;
    this.keys.append(row);
    return inputs[0];
  }

  // The message that PutLimit takes.
  read() {
    const text = (id) => this.fields[id].input.value.trim();
    const limit = {...this.limit};
    for (const output of ['origin', 'definedAt', 'reason', 'expiresIn']) delete limit[output];
    limit.name = text('name');
    limit.algorithm = text('algorithm');
    limit.rate = {permits: text('rate.permits').replaceAll(',', ''), period: `${Number(this.periodCount.value) * Number(this.periodUnit.value)}s`};
    if (limit.algorithm === 'ALGORITHM_CONCURRENCY') delete limit.rate;
    limit.mode = text('mode');
    limit.onStoreFailure = text('on_store_failure');
    limit.sharing = text('sharing');
    const optional = {burst: 'burst', debt: 'debt', sub_windows: 'subWindows', utc_offset: 'utcOffset', max_wait: 'maxWait', permits: 'permits', hold_for: 'holdFor'};
    for (const [id, name] of Object.entries(optional)) {
      const value = this.fields[id].row.hidden ? '' : text(id).replaceAll(',', '');
      if (value === '') delete limit[name];
      else limit[name] = name === 'subWindows' ? Number(value) : value;
    }
    limit.charges = text('charges').split(/[\s,]+/).filter((name) => name !== '');
    limit.keys = [...this.keys.children].map((row) => {
      const [key, rate, burst, debt, slots] = row.inputs.map((input) => input.value.trim());
      const one = {key};
      const parts = /^([\d,]+)\s*\/\s*([\d.]*)\s*(s|min|h|day)?$/.exec(rate);
      if (parts) {
        const seconds = {s: 1, min: 60, h: 3600, day: 86400}[parts[3] ?? 's'];
        one.rate = {permits: parts[1].replaceAll(',', ''), period: `${(parts[2] === '' ? 1 : Number(parts[2])) * seconds}s`};
      } else if (rate !== '') {
        throw new Error(`Rate of the key ${key}: "${rate}" is no rate; write it as 100/s or 5000/3600s`);
      }
      if (burst !== '') one.burst = burst;
      if (debt !== '') one.debt = debt;
      if (slots !== '') one.permits = slots;
      return one;
    });
    return limit;
  }

  // Lines that say what differs from the limit as it is.
  changes(limit) {
    const shown = (one) => ({
      rate: allowsText(one), 'held for': duration(secondsOf(one.holdFor ?? '30s')), algorithm: algorithmName(one.algorithm),
      burst: one.burst ?? 'as the rate', debt: one.debt ?? '0',
      mode: one.mode === 'MODE_SHADOW' ? 'shadow' : 'enforce', 'sub-windows': one.subWindows ?? '10',
      'UTC offset': one.utcOffset ?? '0', charges: (one.charges ?? []).join(', ') || 'none',
      'longest wait': duration(secondsOf(one.maxWait ?? '3600s')),
      'on store failure': (one.onStoreFailure ?? 'ON_STORE_FAILURE_DENY').replace('ON_STORE_FAILURE_', '').toLowerCase(),
      sharing: (one.sharing ?? 'SHARING_EXACT').replace('SHARING_', '').toLowerCase(),
      keys: (one.keys ?? []).map((key) => `${key.key} ${key.rate ? rateText(key.rate) : ''} ${key.burst ?? ''} ${key.debt ?? ''} ${key.permits ?? ''}`.trim()).join('; ') || 'none',
    });
    const after = shown(limit);
    if (!this.name) return [limit.algorithm === 'ALGORITHM_CONCURRENCY' ? `New limit ${limit.name}: ${after.rate}, held for ${after['held for']}, ${after.mode}` : `New limit ${limit.name}: ${after.rate}, ${after.algorithm}, burst ${after.burst}, ${after.mode}`];
    const before = shown(this.limit);
    return Object.keys(after).filter((id) => before[id] !== after[id]).map((id) => `${id}: ${before[id]} → ${after[id]}`);
  }

  async submit(event) {
    event.preventDefault();
    this.clearErrors();
    let limit;
    try {
      limit = this.read();
    } catch (problem) {
      this.showError('keys', problem.message);
      return;
    }
    const notes = ['It takes effect at once. Buckets keep their fill in proportion; grant times that were given stay.'];
    const most = limit.rate ? `${count(Number(limit.rate.permits) || 0)} permits in ${duration(secondsOf(limit.rate.period))}` : `${count(Number(limit.permits) || 0)} permits at once`;
    if (this.limit.mode === 'MODE_SHADOW' && limit.mode === 'MODE_ENFORCE') notes.push(`It begins to deny: more than ${most} for a key.`);
    if (limit.mode === 'MODE_SHADOW' && this.limit.mode === 'MODE_ENFORCE') notes.push('It stops denying.');
    const definer = this.name ? definerOf(this.limit) : null;
    if (definer) notes.push(`${definer.what} defines this limit. Its definition returns when ${definer.changes}, or when the server restarts.`);
    else notes.push('No file defines it: it stays until it is deleted or the server restarts.');
    let refused = null;
    const done = await confirmPut(limit.name, this.changes(limit), notes, async () => {
      try {
        return await call('putLimit', {limit});
      } catch (problem) {
        // An error in a field is shown beside the field.
        if (this.fieldOf(problem.field) === '') throw problem;
        refused = problem;
        return null;
      }
    });
    if (refused) {
      this.showError(this.fieldOf(refused.field), refused.message);
      return;
    }
    if (done === null) return;
    await this.context.loadLimits();
    location.hash = limitAddress(limit.name);
  }

  // The id of the field that the server's path names, as "limit.rate" or "limit.keys[0].burst".
  fieldOf(path) {
    const name = path.replace(/^limit\./, '').replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    if (name === 'rate') return 'rate.permits';
    if (name.startsWith('keys')) return 'keys';
    if (name.startsWith('charges')) return 'charges';
    return this.fields[name] ? name : '';
  }

  clearErrors() {
    fill(this.error);
    for (const {input, error} of Object.values(this.fields)) {
      fill(error);
      input.removeAttribute('aria-invalid');
    }
  }

  showError(id, message) {
    const {input, error} = this.fields[id];
    fill(this.error, h('div.problem.bad', {}, `The limit was refused. ${message}`));
    fill(error, message);
    input.setAttribute('aria-invalid', 'true');
    input.focus?.();
  }

  update() {}
  destroy() {}
}
