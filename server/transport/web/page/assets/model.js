// The state of the server as the stream tells it, kept by the feed and by each tab alike.

// Columns of `rows` after the time, and of a second's `total`.
export const totals = ['granted', 'denied', 'shadowDenied', 'allowedWithoutStore',
  'deniedWithoutStore', 'shed', 'waiting', 'p99Us'];
// Columns of a limit's counts.
export const outcomes = ['granted', 'denied', 'shadowDenied', 'withoutStore'];

export const hour = 3600;
const minutes = 60;
const none = [0, 0, 0, 0];

// Of the event `snapshot`. `old`: the model before the stream broke; its rows fill the time before
// the server started.
export function modelOf(snapshot, old) {
  const end = Math.round(snapshot.at);
  const length = snapshot.total.granted.length;
  const rows = [];
  for (let i = 0; i < length; ++i) {
    rows.push([end - (length - 1 - i), ...totals.map((name) => snapshot.total[name][i])]);
  }
  const first = rows.length > 0 ? rows[0][0] : end;
  const before = (old?.rows ?? []).filter((row) => row[0] < first && row[0] > end - hour);
  if (before.length > 0 && before[before.length - 1][0] < first - 1) {
    before.push([before[before.length - 1][0] + 1, ...totals.map(() => null)]);  // a gap
  }
  const limits = {};
  for (const one of snapshot.limits) {
    limits[one.limit] = {
      minutes: outcomes.map((name) => one[name]),
      last: none,
      minute: one.lastMinute,
    };
  }
  return {
    at: snapshot.at, second: snapshot.second, startedAt: snapshot.startedAt,
    version: snapshot.version, changes: snapshot.changes, config: snapshot.config,
    now: snapshot.now, deniedKeys: snapshot.deniedKeys, deniedSince: snapshot.deniedSince, rows: before.concat(rows), limits,
  };
}

// Of the event `second`.
export function applySecond(model, event) {
  const newMinutes = Math.floor(event.second / 60) - Math.floor(model.second / 60);
  const elapsed = event.second - model.second;
  const t = Math.max(Math.round(event.at), (model.rows[model.rows.length - 1]?.[0] ?? 0) + 1);
  model.rows.push([t, ...event.total]);
  while (model.rows.length > 0 && model.rows[0][0] <= t - hour) model.rows.shift();
  model.at = event.at;
  model.second = event.second;
  model.now = event.now;
  if (event.config) model.config = event.config;
  if (event.deniedKeys) {
    model.deniedKeys = event.deniedKeys;
    model.deniedSince = event.deniedSince;
  }
  for (const limit of Object.values(model.limits)) {
    for (let i = 0; i < Math.min(newMinutes, minutes); ++i) {
      for (const column of limit.minutes) {
        column.push(0);
        if (column.length > minutes) column.shift();
      }
    }
    limit.last = none;
    limit.minute = none;
  }
  for (const [name, numbers] of Object.entries(event.limits)) {
    const limit = model.limits[name] ??=
      {minutes: outcomes.map(() => new Array(minutes).fill(0)), last: none, minute: none};
    limit.last = numbers.slice(0, 4);
    limit.minute = numbers.slice(4, 8);
    limit.minutes.forEach((column, i) => { column[column.length - 1] += numbers[i] * elapsed; });
  }
  return t;
}

// Share of the decisions of the last minute that were denied, 0 to 1.
export function shareDenied([granted, denied]) {
  return granted + denied > 0 ? denied / (granted + denied) : 0;
}
