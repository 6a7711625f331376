// The page: chooses the view by the address, and passes it what the feed says.
import {adminToken, call, onTokenChange} from './api.js';
import {askToken} from './dialogs.js';
import {clock, duration, fill, h, setText} from './dom.js';
import {EditView} from './edit.js';
import {Feed} from './feed.js';
import {KeyView} from './key.js';
import {LimitView} from './limit.js';
import {applySecond} from './model.js';
import {NodesView} from './nodes.js';
import {Overview} from './overview.js';

// Above, the overview lists only limits that are in use, without their parameters.
const maxListedLimits = 2000;

const main = document.getElementById('main');
const lost = document.getElementById('lost');
const connection = document.getElementById('connection');
let view = null;

// What views know.
const context = {
  model: null,
  limits: new Map(),  // by name, as ListLimits tells them
  live: false,
  async loadLimits() {
    try {
      const config = context.model?.config;
      if (!config || (config.limits ?? 0) > maxListedLimits) return;
      const answer = await call('listLimits');
      context.limits = new Map((answer.limits ?? []).map((limit) => [limit.name, limit]));
      view?.update(true);
    } catch {
      // The next change of the configuration tries again; the feed says that the server is gone.
    }
  },
};

// ---- Views ----

function makeView() {
  let parts;
  try {
    parts = location.hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent);
  } catch {
    parts = [''];
  }
  const [kind, first = '', second = ''] = parts;
  if (kind === 'nodes') return new NodesView(context);
  if (kind === 'limit') return new LimitView(context, first);
  if (kind === 'key') return new KeyView(context, first, second);
  if (kind === 'edit') return new EditView(context, first);
  if (kind === 'new') return new EditView(context, '');
  return new Overview(context);
}

let shownOnce = false;
function show() {
  view?.destroy();
  view = makeView();
  document.title = `${view.title} – Sluice`;
  fill(main, view.element);
  for (const link of document.querySelectorAll('nav a')) {
    const here = link.getAttribute('href') === (location.hash || '#/');
    if (here) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  port.postMessage({type: 'watch', buckets: view.watches ?? []});
  view.update(true);
  // A screen reader then reads the heading of the view.
  if (shownOnce) main.querySelector('h1')?.focus();
  shownOnce = true;
  scrollTo(0, 0);
}

// ---- The feed ----

function openFeed() {
  const local = () => {
    const channel = new MessageChannel();
    new Feed().attach(channel.port2);
    return channel.port1;
  };
  if (typeof SharedWorker === 'undefined') return local();
  try {
    const worker = new SharedWorker('/page/feed.js', {type: 'module', name: 'sluice'});
    worker.onerror = () => {
      if (context.model) return;
      port = local();
      listen();
      show();
    };
    return worker.port;
  } catch {
    return local();
  }
}

function hello() {
  port.postMessage({type: 'hello', token: adminToken()});
}

function listen() {
  port.onmessage = ({data}) => handlers[data.type]?.(data);
  port.start?.();
  hello();
}

const handlers = {
  model({model}) {
    const before = context.model;
    context.model = model;
    document.body.classList.remove('stale');
    footer();
    if (configKey(before) !== configKey(model)) context.loadLimits();
    view?.update('model');
  },
  second({event}) {
    if (!context.model) return;
    const before = configKey(context.model);
    applySecond(context.model, event);
    footer();
    if (configKey(context.model) !== before) context.loadLimits();
    view?.update();
  },
  status(status) {
    context.live = status.state === 'live';
    document.body.classList.toggle('stale', status.state === 'lost');
    connection.className = `connection ${status.state}`;
    const names = {live: 'live', connecting: 'connecting', lost: 'no answer', token: 'token needed'};
    setText(connection, names[status.state]);
    if (status.state === 'lost') showLost(status);
    else if (status.state === 'token') showTokenNeeded(status);
    else fill(lost);
  },
  buckets({answer}) {
    view?.onBuckets?.(answer);
  },
  watchError({error}) {
    if (context.live) view?.onWatchError?.(error);
  },
};

// Changes whenever the limits may have changed.
function configKey(model) {
  if (!model) return '';
  const {version, reloads, adminChanges, limits} = model.config;
  return [model.startedAt, version, reloads, adminChanges, limits].join();
}

function showLost({since, problem}) {
  const text = `The server does not answer since ${clock(since)}.`;
  if (lost.firstChild?.dataset?.since === String(since)) return;
  const why = problem?.status > 0 ? ` It answered with status ${problem.status}: ${problem.detail ?? problem.title ?? ''}` : '';
  fill(lost, h('div.problem.bad', {'data-since': since}, h('strong', {}, text),
    `${why} What this page shows is from before. It tries again by itself every few seconds.`));
}

function showTokenNeeded({problem}) {
  if (lost.firstChild?.dataset?.token) return;
  fill(lost, h('div.problem.bad', {'data-token': true}, h('strong', {}, 'The server asks for the admin token. '), problem.detail ?? '', ' ',
    h('button', {type: 'button', onclick: () => askToken('The server shows its state only with the admin token.')}, 'Give the token')));
}

function footer() {
  const {model} = context;
  setText(document.getElementById('footer'), `sluiced ${model.version} at ${location.host}, started ${duration(Math.round(model.at - model.startedAt))} ago. Times are of this browser's time zone.`);
}

// ---- Start ----

const tokenButton = document.getElementById('token');
function showToken() {
  setText(tokenButton, adminToken() ? 'Admin token: given' : 'Admin token');
}
tokenButton.addEventListener('click', () => askToken(context.model && !context.model.changes
  ? 'This server was started without --admin_token_file: it refuses every change.'
  : 'Changing limits and resetting keys requires the token of --admin_token_file.'));
onTokenChange(() => {
  showToken();
  hello();
});
showToken();

let port = openFeed();
listen();
addEventListener('pagehide', () => port.postMessage({type: 'bye'}));
addEventListener('pageshow', (event) => { if (event.persisted) { hello(); show(); } });
addEventListener('hashchange', show);
show();
