// The feed: two streams from the server, shared by all tabs of a browser, which opens at most six
// connections to a host. Runs in a SharedWorker; where there is none, in the tab itself.
//
// A tab sends   {type: 'hello', token}, {type: 'watch', buckets}, {type: 'bye'}
// and receives  {type: 'status', ...}, {type: 'model', model}, {type: 'second', event},
//               {type: 'buckets', answer}, {type: 'watchError', error}
import {applySecond, modelOf} from './model.js';

const firstRetryMs = 500;
const lastRetryMs = 5000;
// The overview says something every second.
const silenceMs = 6000;

// One stream of server-sent events that reconnects by itself.
class Stream {
  constructor(request, on) {
    this.request = request;  // returns [address, options of fetch]
    this.on = on;
    this.retryMs = firstRetryMs;
    this.run();
  }

  async run() {
    while (!this.stopped) {
      this.abort = new AbortController();
      let problem;
      try {
        problem = await this.read();
      } catch (error) {
        problem = {status: 0, detail: String(error.message ?? error)};
      }
      clearTimeout(this.silence);
      if (this.stopped) return;
      this.on.lost(problem, Date.now() + this.retryMs);
      await new Promise((done) => {
        this.wake = done;
        setTimeout(done, this.retryMs * (0.8 + 0.4 * Math.random()));
      });
      this.retryMs = Math.min(this.retryMs * 2, lastRetryMs);
    }
  }

  // Returns why the stream ended.
  async read() {
    const [address, options] = this.request();
    this.expectWord();
    const response = await fetch(address, {...options, cache: 'no-store', signal: this.abort.signal});
    if (!response.ok) {
      const problem = await response.json().catch(() => ({}));
      return {...problem, status: response.status};
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = '';
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return {status: 0, detail: 'the server closed the stream'};
      this.expectWord();
      text += value;
      for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
        this.dispatch(text.slice(0, end));
        text = text.slice(end + 2);
      }
    }
  }

  expectWord() {
    clearTimeout(this.silence);
    if (this.on.quiet) return;
    this.silence = setTimeout(() => this.abort.abort(new Error('no answer from the server')), silenceMs);
  }

  dispatch(block) {
    let event = 'message';
    const data = [];
    for (const line of block.split('\n')) {
      if (line.startsWith('event:')) event = line.slice(6).trim();
      else if (line.startsWith('data:')) data.push(line.slice(5).trimStart());
    }
    if (data.length === 0) return;
    this.retryMs = firstRetryMs;
    this.on.event(event, JSON.parse(data.join('\n')));
  }

  // Tries again now.
  retry() {
    this.retryMs = firstRetryMs;
    this.wake?.();
  }

  stop() {
    this.stopped = true;
    this.abort?.abort();
    this.wake?.();
  }
}

export class Feed {
  tabs = new Map();  // port -> the buckets that it watches
  token = '';
  model = null;
  status = {state: 'connecting'};
  overview = null;
  watch = null;
  watched = '[]';
  statuses = new Map();  // of watched buckets, by limit and key

  attach(port) {
    port.onmessage = ({data}) => this.onMessage(port, data);
    port.start?.();
  }

  onMessage(port, message) {
    if (message.type === 'bye') {
      this.tabs.delete(port);
      this.watchAll();
      return;
    }
    if (message.type === 'hello') {
      const fresh = !this.tabs.has(port);
      if (fresh) this.tabs.set(port, []);
      if ((message.token ?? '') !== this.token && message.token !== undefined) {
        this.token = message.token;
        if (this.status.state !== 'live') this.overview?.retry();
      }
      this.overview ??= this.openOverview();
      port.postMessage({type: 'status', ...this.status});
      if (this.model) port.postMessage({type: 'model', model: this.model});
      return;
    }
    if (message.type === 'watch') {
      this.tabs.set(port, message.buckets);
      for (const {limit, key} of message.buckets) {
        const known = this.statuses.get(JSON.stringify([limit, key]));
        if (known) port.postMessage({type: 'buckets', answer: {buckets: [known], at: known.at}});
      }
      this.watchAll();
    }
  }

  send(message) {
    for (const port of this.tabs.keys()) port.postMessage(message);
  }

  setStatus(status) {
    this.status = status;
    this.send({type: 'status', ...status});
  }

  headers() {
    return this.token ? {Authorization: `Bearer ${this.token}`} : {};
  }

  openOverview() {
    return new Stream(() => ['/v1/overview', {headers: this.headers()}], {
      event: (name, data) => {
        if (name === 'snapshot') {
          this.model = modelOf(data, this.model);
          this.setStatus({state: 'live'});
          this.send({type: 'model', model: this.model});
        } else if (name === 'second' && this.model) {
          applySecond(this.model, data);
          this.send({type: 'second', event: data});
        }
      },
      lost: (problem, retryAt) => {
        const since = this.status.since ?? Date.now() / 1000;
        const state = problem.status === 401 ? 'token' : 'lost';
        this.setStatus({state, since, retryAt, problem});
      },
    });
  }

  // One Watch for the buckets of all tabs.
  watchAll() {
    const all = new Map();
    for (const buckets of this.tabs.values()) {
      for (const {limit, key} of buckets) all.set(JSON.stringify([limit, key]), {limit, key});
    }
    const wanted = JSON.stringify([...all.keys()].sort());
    if (wanted === this.watched) return;
    this.watched = wanted;
    this.watch?.stop();
    this.watch = null;
    for (const name of this.statuses.keys()) if (!all.has(name)) this.statuses.delete(name);
    if (all.size === 0) return;
    const body = JSON.stringify({buckets: [...all.values()], minInterval: '0.250s'});
    this.watch = new Stream(
      () => ['/v1/watch', {method: 'POST', body,
        headers: {'Content-Type': 'application/json', Accept: 'text/event-stream', ...this.headers()}}],
      {
        quiet: true,  // says nothing while nothing changes
        event: (name, data) => {
          if (!data.buckets) return;
          for (const bucket of data.buckets) {
            bucket.at = data.at;
            this.statuses.set(JSON.stringify([bucket.limit, bucket.key ?? '']), bucket);
          }
          this.send({type: 'buckets', answer: data});
        },
        lost: (problem) => this.send({type: 'watchError', error: problem}),
      });
  }
}

if (typeof SharedWorkerGlobalScope !== 'undefined') {
  const feed = new Feed();
  self.onconnect = (event) => feed.attach(event.ports[0]);
}
