// Calls of the server's JSON interface, and the admin token. The token stays in the memory of this
// tab and its sessionStorage, and is sent only as the Authorization header.

const slot = 'sluice.adminToken';
let token = sessionStorage.getItem(slot) ?? '';
const listeners = [];

export function adminToken() {
  return token;
}

export function setAdminToken(text) {
  token = text;
  if (text) sessionStorage.setItem(slot, text);
  else sessionStorage.removeItem(slot);
  for (const listener of listeners) listener();
}

export function onTokenChange(listener) {
  listeners.push(listener);
}

// An error that the server answered. `field`: the path of the field that it names, or ''.
export class ServerError extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `HTTP status ${status}`);
    this.status = status;
    const path = /^([a-z]\w*(?:\.[a-z]\w*|\[\d+\])*): /i.exec(this.message);
    this.field = path ? path[1] : '';
  }
}

async function fetchJson(address, options) {
  const headers = {...options.headers};
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(address, {...options, headers, cache: 'no-store'});
  } catch {
    throw new ServerError(0, {detail: 'The server did not answer.'});
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new ServerError(response.status, body);
  return body;
}

// A unary RPC of sluice.v1, as 'listLimits'.
export function call(method, request = {}) {
  return fetchJson(`/v1/${method}`, {
    method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(request),
  });
}

export function history(limit) {
  return fetchJson(`/v1/history?limit=${encodeURIComponent(limit)}`, {});
}
