// Builds and updates elements. Text is always set as text, never as HTML: names and keys come from
// callers.

// h('td.number', {title: '...'}, 'text', element, ...). A property that starts with "on" is a listener.
export function h(kind, properties = {}, ...children) {
  const [tag, ...classes] = kind.split('.');
  const element = document.createElement(tag || 'div');
  if (classes.length > 0) element.className = classes.join(' ');
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'value') element.value = value;
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

// Sets the text of an element, if it differs.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Replaces the children of an element.
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
}

// Makes the children of `parent` those of `items`, in their order. A child is kept as long as its key
// is there, so that focus and selection survive.
export function keyed(parent, items, keyOf, make, update) {
  const old = parent.keyedRows ?? new Map();
  const rows = new Map();
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    const row = old.get(key) ?? make(item);
    rows.set(key, row);
    update(row, item);
    if (row.element === at) at = at.nextElementSibling;
    else parent.insertBefore(row.element, at);
  }
  for (const [key, row] of old) if (!rows.has(key)) row.element.remove();
  parent.keyedRows = rows;
}

// A table with a caption for screen readers. Columns: {label, number, wide, title}.
export function table(caption, columns, body) {
  return h('div.scroll', {role: 'group', 'aria-label': caption, tabindex: 0},
    h('table', {}, h('caption.hidden', {}, caption),
      h('thead', {}, h('tr', {}, columns.map((c) =>
        c.element ?? h(`th${c.number ? '.number' : ''}${c.wide ? '.wide' : ''}`, {scope: 'col'}, c.label)))),
      body));
}

// ---- Numbers, with units ----

const whole = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
const tenth = new Intl.NumberFormat('en', {maximumFractionDigits: 1});

export function count(n) {
  return whole.format(n);
}

// "0", "0.3", "7.5", "12,345", "1.2 M".
export function amount(n) {
  if (n >= 1e9) return `${tenth.format(n / 1e9)} G`;
  if (n >= 1e6) return `${tenth.format(n / 1e6)} M`;
  if (n > 0 && n < 0.05) return '< 0.1';
  return n < 10 ? tenth.format(n) : whole.format(n);
}

export function perSecond(n) {
  return `${amount(n)}/s`;
}

export function percent(part, total) {
  if (total <= 0 || part <= 0) return '0 %';
  const p = 100 * part / total;
  if (p < 0.1) return '< 0.1 %';
  if (p > 99.9 && p < 100) return '> 99.9 %';
  return `${tenth.format(p)} %`;
}

export function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) {
    n /= 1024;
    ++unit;
  }
  return `${tenth.format(n)} ${units[unit]}`;
}

// Of seconds: "350 ms", "2.5 s", "3 min 20 s", "5 h 2 min", "3 d 4 h".
export function duration(s) {
  if (s <= 0) return '0 s';
  if (s < 0.001) return `${tenth.format(s * 1e6)} µs`;
  if (s < 1) return `${tenth.format(s * 1e3)} ms`;
  if (s < 60) return `${tenth.format(s)} s`;
  const units = [[86400, 'd', 3600, 'h'], [3600, 'h', 60, 'min'], [60, 'min', 1, 's']];
  const [size, name, lesser, lesserName] = units.find(([one]) => s >= one);
  const rest = Math.floor((s % size) / lesser);
  return `${Math.floor(s / size)} ${name}${rest > 0 ? ` ${rest} ${lesserName}` : ''}`;
}

// protobuf's JSON: "1.5s" -> 1.5; absent -> 0.
export function secondsOf(text) {
  return text ? parseFloat(text) : 0;
}

// Of seconds since 1970: "03:12:04", with the date if it is not today.
export function clock(s) {
  const date = new Date(s * 1000);
  const two = (n) => String(n).padStart(2, '0');
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (date.toDateString() === new Date().toDateString()) return time;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

export function clockOf(timestamp) {
  return timestamp ? clock(Date.parse(timestamp) / 1000) : 'never';
}

// What defines a limit whose definition an admin may replace or delete for a while; null: only an
// admin has made it. A replaced limit only knows the place of its definition.
export function definerOf(limit) {
  const place = ` (${limit.definedAt})`;
  switch (limit.origin) {
    case 'ORIGIN_ADMIN': return null;
    case 'ORIGIN_ENVOY': return {what: `Envoy's configuration${place}`, changes: 'the configuration next changes'};
    case 'ORIGIN_ADMIN_OVER_FILE': return {what: limit.definedAt, changes: 'that file or configuration next changes'};
    default: return {what: `The limits file${place}`, changes: 'the file next changes'};
  }
}

// "100/s, burst 200"
export function rateText(rate) {
  if (!rate) return '';
  const period = secondsOf(rate.period ?? '1s');
  const names = {1: 's', 60: 'min', 3600: 'h', 86400: 'day'};
  return `${count(Number(rate.permits ?? 0))}/${names[period] ?? duration(period)}`;
}

// What a limit allows each key: "100/s", or "5 at once" of a limit on what is in use.
export function allowsText(limit) {
  return limit.algorithm === 'ALGORITHM_CONCURRENCY' ? `${count(Number(limit.permits ?? 0))} at once` : rateText(limit.rate);
}

// ---- Addresses of the views ----

export function limitAddress(limit) {
  return `#/limit/${encodeURIComponent(limit)}`;
}

export function keyAddress(limit, key) {
  return `#/key/${encodeURIComponent(limit)}/${encodeURIComponent(key)}`;
}

export function keyName(key) {
  return key === '' ? '(the shared bucket)' : key;
}
