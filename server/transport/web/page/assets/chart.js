// Charts over time, drawn by dygraphs; and sparklines.
import {amount, clock, fill, h, setText} from './dom.js';

// dygraphs' legend sets a style attribute, which our Content-Security-Policy forbids; ours replaces it.
const Dygraph = window.Dygraph;
Dygraph.PLUGINS = Dygraph.PLUGINS.filter((plugin) => plugin !== Dygraph.Plugins.Legend);

const dark = matchMedia('(prefers-color-scheme: dark)');
const colorOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// A chart whose legend shows the values under the pointer, or the newest ones. `series`: {label,
// color: a variable of the style sheet, dash, unit}. Rows are [seconds since 1970, number or null, ...].
export class TimeChart {
  constructor(title, series, options = {}) {
    this.title = title;
    this.series = series;
    this.unit = options.unit ?? '/s';
    this.partner = null;  // a chart with the same rows, whose pointer moves with ours
    this.rows = [];
    this.window = options.window ?? 3600;
    this.step = options.step ?? false;
    this.top = options.top;
    this.canvas = h('div.canvas', {role: 'img'});
    this.values = series.map(() => h('span.value', {}, '–'));
    this.time = h('span.muted.time', {}, '');
    this.legend = h('div.legend', {}, h('h3', {}, title), series.map((one, i) =>
      h('span.entry', {}, h(`span.mark.${one.color}${one.dash ? '.dashed' : ''}`, {}), `${one.label} `, this.values[i])),
    this.time);
    this.table = h('details.values', {}, h('summary', {}, 'As a table'));
    this.table.addEventListener('toggle', () => this.fillTable());
    this.element = h('figure.chart', {}, this.legend, this.canvas, this.table);
    this.onScheme = () => this.graph?.updateOptions(this.colors());
    dark.addEventListener('change', this.onScheme);
  }

  colors() {
    return {
      colors: this.series.map((one) => colorOf(one.color)),
      gridLineColor: colorOf('line'),
      axisLineColor: colorOf('line'),
    };
  }

  draw() {
    const format = (v) => amount(v);
    this.graph = new Dygraph(this.canvas, this.rows, {
      ...this.colors(),
      labels: ['Time', ...this.series.map((one) => one.label)],
      fillGraph: true, fillAlpha: 0.12, strokeWidth: 1.25, stepPlot: this.step,
      axes: {
        x: {drawGrid: false, axisLabelWidth: 60},
        y: {axisLabelFormatter: format, axisLabelWidth: 56, includeZero: true},
      },
      series: Object.fromEntries(this.series.filter((one) => one.dash)
        .map((one) => [one.label, {strokePattern: [5, 3]}])),
      dateWindow: this.range(),
      valueRange: this.valueRange(),
      highlightCircleSize: 2.5,
      interactionModel: {},
      highlightCallback: (_event, x, _points, row) => this.show(row, true),
      unhighlightCallback: () => this.show(-1, true),
    });
  }

  range() {
    const end = this.rows.length > 0 ? this.rows[this.rows.length - 1][0].getTime() : Date.now();
    return [end - this.window * 1000, end];
  }

  valueRange() {
    let highest = this.top ?? 1;
    const from = this.range()[0];
    for (const row of this.rows) {
      if (row[0] < from) continue;
      for (let i = 1; i < row.length; ++i) if (row[i] > highest) highest = row[i];
    }
    return [this.lowest(from), highest * 1.08];
  }

  lowest(from) {
    let lowest = 0;
    for (const row of this.rows) {
      if (row[0] < from) continue;
      for (let i = 1; i < row.length; ++i) if (row[i] !== null && row[i] < lowest) lowest = row[i];
    }
    return lowest;
  }

  // `rows` are shown as they are at this moment.
  set(rows) {
    this.rows = rows;
    if (rows.length === 0 || !this.canvas.isConnected) return;
    if (!this.graph) this.draw();
    else {
      this.graph.updateOptions({file: this.rows, dateWindow: this.range(), valueRange: this.valueRange()});
    }
    if (!(this.shown >= 0)) this.show(-1, false);
    this.describe();
  }

  setWindow(seconds) {
    this.window = seconds;
    if (this.graph) this.set(this.rows);
  }

  // The values of a row; -1: of the newest one.
  show(row, byPointer) {
    this.shown = row;
    const values = this.rows[row >= 0 ? row : this.rows.length - 1];
    if (!values) return;
    this.series.forEach((_one, i) => setText(this.values[i], this.text(values[i + 1])));
    setText(this.time, row >= 0 ? `at ${clock(values[0].getTime() / 1000)}` : 'now');
    if (!byPointer || !this.partner?.graph) return;
    this.partner.show(row, false);
    if (row >= 0) this.partner.graph.setSelection(row);
    else this.partner.graph.clearSelection();
  }

  text(value) {
    return value === null || value === undefined ? 'not known' : `${amount(value)}${this.unit}`;
  }

  // For screen readers.
  describe() {
    const from = this.range()[0];
    const parts = this.series.map((one, i) => {
      let highest = null;
      for (const row of this.rows) {
        if (row[0] >= from && row[i + 1] !== null && (highest === null || row[i + 1] > highest[i + 1])) highest = row;
      }
      const now = this.rows[this.rows.length - 1][i + 1];
      if (highest === null) return `${one.label}: not known`;
      return `${one.label}: now ${this.text(now)}, at most ${this.text(highest[i + 1])} at ${clock(highest[0] / 1000)}`;
    });
    const text = `${this.title}. ${parts.join('. ')}.`;
    if (this.described !== text) this.canvas.setAttribute('aria-label', text);
    this.described = text;
  }

  // The highest value of each minute, as of the moment at which it is opened.
  fillTable() {
    if (!this.table.open) return;
    const minutes = new Map();
    const from = this.range()[0];
    for (const row of this.rows) {
      if (row[0] < from) continue;
      const minute = Math.floor(row[0] / 60000);
      const highest = minutes.get(minute) ?? this.series.map(() => null);
      highest.forEach((old, i) => { if (row[i + 1] !== null && !(row[i + 1] <= old && old !== null)) highest[i] = row[i + 1]; });
      minutes.set(minute, highest);
    }
    const lines = [...minutes].reverse().map(([minute, highest]) => h('tr', {},
      h('th', {scope: 'row'}, clock(minute * 60)), highest.map((v) => h('td.number', {}, this.text(v)))));
    fill(this.table, h('summary', {}, 'As a table'), h('div.scroll', {tabindex: 0, role: 'group', 'aria-label': `${this.title}, by minute`},
      h('table', {}, h('caption', {}, 'Highest value in each minute'),
        h('thead', {}, h('tr', {}, h('th', {scope: 'col'}, 'Minute'), this.series.map((one) => h('th.number', {scope: 'col'}, one.label)))),
        h('tbody', {}, lines))));
  }

  destroy() {
    dark.removeEventListener('change', this.onScheme);
    this.graph?.destroy();
  }
}

// Buttons that choose how much of the last hour the charts show.
export function windowChoice(charts) {
  const choices = [['Hour', 3600], ['15 min', 900], ['5 min', 300]];
  const buttons = choices.map(([label, seconds]) => h('button.choice', {
    type: 'button', 'aria-pressed': seconds === 3600 ? 'true' : 'false',
    onclick: (event) => {
      for (const one of buttons) one.setAttribute('aria-pressed', String(one === event.currentTarget));
      for (const chart of charts) chart.setWindow(seconds);
    },
  }, label));
  return h('div.choices', {role: 'group', 'aria-label': 'Time shown by the charts'}, buttons);
}

const svg = 'http://www.w3.org/2000/svg';

// The last hour of a limit, a bar for each minute: the share that was denied, over a line where the
// limit was used at all.
export class Sparkline {
  constructor() {
    this.element = document.createElementNS(svg, 'svg');
    this.element.setAttribute('class', 'spark');
    this.element.setAttribute('viewBox', '0 0 120 20');
    this.element.setAttribute('preserveAspectRatio', 'none');
    this.element.setAttribute('role', 'img');
    this.used = document.createElementNS(svg, 'path');
    this.used.setAttribute('class', 'used');
    this.denied = document.createElementNS(svg, 'path');
    this.denied.setAttribute('class', 'denied');
    this.element.append(this.used, this.denied);
  }

  // Counts of each minute, oldest first.
  set(granted, denied) {
    let used = '';
    let bars = '';
    let worst = 0;
    const offset = 60 - granted.length;
    for (let i = 0; i < granted.length; ++i) {
      const all = granted[i] + denied[i];
      if (all === 0) continue;
      const x = 2 * (i + offset);
      used += `M${x} 19.5h2`;
      const share = denied[i] / all;
      worst = Math.max(worst, share);
      if (share > 0) bars += `M${x + 1} 19v${-Math.max(1, 19 * share).toFixed(1)}`;
    }
    if (this.path === used + bars) return;
    this.path = used + bars;
    this.used.setAttribute('d', used);
    this.denied.setAttribute('d', bars);
    this.element.setAttribute('aria-label', used === '' ? 'not used in the last hour'
      : `share denied in the last hour, by minute: at most ${Math.round(worst * 100)} %`);
  }
}
