// Dialogs: the admin token, and the confirmations of changes. A confirmation says what will happen;
// an error of the server stays in it.
import {adminToken, call, setAdminToken} from './api.js';
import {count, definerOf, fill, h, keyName} from './dom.js';

// Shows a dialog with `parts` until act() succeeds or the user leaves. Returns act()'s value, or null.
function ask(title, parts, verb, act) {
  return new Promise((resolve) => {
    const error = h('div', {role: 'alert'});
    const token = h('input', {type: 'password', id: 'ask-token', autocomplete: 'off', value: adminToken()});
    const go = h('button.danger', {type: 'submit'}, verb);
    const dialog = h('dialog', {'aria-labelledby': 'ask-title'},
      h('form', {onsubmit: async (event) => {
        event.preventDefault();
        setAdminToken(token.value.trim());
        go.disabled = true;
        try {
          const value = await act();
          dialog.result = value;
          dialog.close();
        } catch (problem) {
          fill(error, h('div.problem.bad', {}, problem.message));
          go.disabled = false;
          go.focus();
        }
      }},
      h('h2', {id: 'ask-title'}, title), parts,
      h('p', {}, h('label', {for: 'ask-token'}, 'Admin token'), token),
      error,
      h('p.actions', {}, h('button', {type: 'button', onclick: () => dialog.close()}, 'Cancel'), go)));
    dialog.result = null;
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(dialog.result);
    });
    document.body.append(dialog);
    dialog.showModal();
    if (token.value) go.focus();
    else token.focus();
  });
}

export function confirmDelete(limit) {
  const definer = definerOf(limit);
  const parts = [h('p', {}, limit.origin === 'ORIGIN_ENVOY'
    ? `Programs that charge ${limit.name} then fail with NOT_FOUND. Requests from Envoy that match its descriptor have no limit.`
    : `Requests that charge ${limit.name} then fail with NOT_FOUND.`),
    h('p', {}, definer ? `${definer.what} defines it. It comes back when ${definer.changes}, or when the server restarts.`
      : 'No file defines it, so it does not come back by itself.')];
  return ask(`Delete the limit ${limit.name}?`, parts, 'Delete the limit', async () => {
    await call('deleteLimit', {name: limit.name});
    return true;
  });
}

// Returns whether the bucket had state, or null if nothing was done.
export function confirmReset(limit, key, bucket) {
  const parts = [h('p', {}, `The bucket becomes full: ${bucket ? `${count(Number(bucket.capacity ?? 0))} permits can` : 'all its permits can'} then be taken at once, whatever was taken before.`),
    h('p', {}, 'Its open receipts expire: their permits cannot be refunded any more.')];
  return ask(`Reset the key ${keyName(key)} of ${limit}?`, parts, 'Reset the key', async () => {
    const answer = await call('resetKey', {limit, key});
    return answer.existed === true;
  });
}

// `changes`: lines that say what changes. act() sends them.
export function confirmPut(name, changes, notes, act) {
  const parts = [changes.length > 0 ? h('ul', {}, changes.map((line) => h('li', {}, line))) : h('p', {}, 'No parameter differs.'),
    notes.map((note) => h('p', {}, note))];
  return ask(`Change the limit ${name}?`, parts, 'Put the limit', act);
}

// Asks for the token that reading needs, or that changes need.
export function askToken(reason) {
  return new Promise((resolve) => {
    const token = h('input', {type: 'password', id: 'token-value', autocomplete: 'off', value: adminToken()});
    const dialog = h('dialog', {'aria-labelledby': 'token-title'},
      h('form', {onsubmit: (event) => {
        event.preventDefault();
        setAdminToken(token.value.trim());
        dialog.close();
      }},
      h('h2', {id: 'token-title'}, 'Admin token'),
      h('p', {}, reason),
      h('p', {}, h('label', {for: 'token-value'}, 'Admin token'), token),
      h('p.muted', {}, 'It stays in this tab until the tab is closed, and is sent to this server only.'),
      h('p.actions', {},
        h('button', {type: 'button', onclick: () => { setAdminToken(''); dialog.close(); }}, 'Forget the token'),
        h('button', {type: 'button', onclick: () => dialog.close()}, 'Cancel'),
        h('button.primary', {type: 'submit'}, 'Use the token'))));
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve();
    });
    document.body.append(dialog);
    dialog.showModal();
    token.focus();
  });
}
