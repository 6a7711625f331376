// The interop scenarios with @grpc/grpc-js. Arguments: PROTO_DIR ADDRESS [CA_FILE].
'use strict';
const fs = require('fs');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const [protoDir, address, caFile] = process.argv.slice(2);
const definition = loader.loadSync('sluice/v1/rate_limiter.proto', {
  includeDirs: [protoDir], keepCase: true, longs: Number, defaults: true, oneofs: true,
});
const { RateLimiter } = grpc.loadPackageDefinition(definition).sluice.v1;
const prefix = caFile ? 'node-tls' : 'node';
const client = new RateLimiter(address,
  caFile ? grpc.credentials.createSsl(fs.readFileSync(caFile)) : grpc.credentials.createInsecure());

let failed = false;
async function check(name, run) {
  try {
    await run();
    console.log(`ok ${name}`);
  } catch (error) {
    failed = true;
    console.log(`FAILED ${name}: ${error.stack || error}`);
  }
}

function assert(condition, what) {
  if (!condition) throw new Error(JSON.stringify(what));
}

const charge = (limit, key, permits = 1) => ({ charges: [{ limit, key, permits }] });
const deadline = (ms) => ({ deadline: Date.now() + ms });
const call = (method, request) => new Promise((resolve, reject) =>
  client[method](request, deadline(10000), (error, answer) => (error ? reject(error) : resolve(answer))));

async function expectError(promise, code, text) {
  try {
    await promise;
  } catch (error) {
    assert(error.code === code && (error.details || '').includes(text), { code: error.code, details: error.details });
    return;
  }
  throw new Error(`no error; wanted ${code}`);
}

// Opens a watch and reads its first answer; `ended` rejects with the stream's error.
function watch(ms) {
  const stream = client.Watch({ buckets: [{ limit: 'hourly', key: `${prefix}-watch` }] }, deadline(ms));
  const first = new Promise((resolve, reject) => { stream.once('data', resolve); stream.once('error', reject); });
  const ended = new Promise((resolve, reject) => { stream.on('end', resolve); stream.on('error', reject); });
  ended.catch(() => {});
  return { stream, first, ended };
}

async function main() {
  await check('unary', async () => {
    const first = await call('Acquire', charge('hourly', `${prefix}-unary`, 3));
    assert(first.granted && first.charges[0].remaining === 0 && first.charges[0].capacity === 3, first);
    const second = await call('Acquire', charge('hourly', `${prefix}-unary`));
    assert(!second.granted && second.retry_after.seconds > 0, second);
  });
  await check('batch', async () => {
    const answer = await call('AcquireBatch', { acquisitions: [
      charge('wide', `${prefix}-batch`), charge('no-such-limit', ''), charge('wide', `${prefix}-batch`, 2)] });
    const [first, second, third] = answer.results;
    assert(first.response.granted, answer);
    assert(second.error.code === 5 && second.error.message.includes('no-such-limit'), answer);
    assert(third.response.charges[0].remaining === 997, answer);
  });
  await check('stream', () => new Promise((resolve, reject) => {
    const stream = client.AcquireStream(deadline(10000));
    let remaining = 1000;
    stream.on('data', (answer) => {
      for (const result of answer.results) {
        remaining -= 1;
        if (result.response.charges[0].remaining !== remaining) reject(new Error(JSON.stringify(result)));
      }
    });
    stream.on('error', reject);
    stream.on('end', () => (remaining === 950 ? resolve() : reject(new Error(`${remaining} left`))));
    for (let i = 0; i < 10; i++) {
      stream.write({ acquisitions: Array(5).fill(charge('wide', `${prefix}-stream`)) });
    }
    stream.end();
  }));
  await check('deadline', async () => {
    const { first, ended } = watch(400);
    assert((await first).buckets[0].remaining === 3, 'first answer');
    await expectError(ended, grpc.status.DEADLINE_EXCEEDED, '');
  });
  await check('cancel', async () => {
    const { stream, first, ended } = watch(10000);
    await first;
    stream.cancel();
    await expectError(ended, grpc.status.CANCELLED, '');
  });
  await check('error text', async () => {
    await expectError(call('Acquire', charge('no-such-limit', '')), grpc.status.NOT_FOUND, 'no-such-limit');
    await expectError(call('Acquire', charge('wide', 'k'.repeat(513))), grpc.status.INVALID_ARGUMENT, 'key');
  });
  client.close();
  process.exit(failed ? 1 : 0);
}

main();
