// Takes a permit. Arguments: LIMIT KEY. Exit codes: 0 granted, 1 denied, 3 no answer.
'use strict';
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

// The folder that contains sluice/v1/rate_limiter.proto. No stubs to generate.
const definition = loader.loadSync('sluice/v1/rate_limiter.proto', {
  includeDirs: [process.env.SLUICE_PROTO_DIR || 'proto'], keepCase: true, longs: Number, defaults: true,
});
const { RateLimiter } = grpc.loadPackageDefinition(definition).sluice.v1;
const client = new RateLimiter(  // one for the program
  process.env.SLUICE_SERVER || '127.0.0.1:7200', grpc.credentials.createInsecure());

const [limit, key] = process.argv.slice(2);
client.Acquire({ charges: [{ limit, key }] }, { deadline: Date.now() + 1000 }, (error, answer) => {
  if (error) {
    // Decide what your program does without an answer: go on, or refuse the work.
    console.log(`error: ${grpc.status[error.code]}: ${error.details}`);
    process.exitCode = 3;
  } else if (!answer.granted) {
    const { seconds, nanos } = answer.retry_after;
    console.log(`denied; try again in ${(seconds + nanos / 1e9).toFixed(0)} s`);
    process.exitCode = 1;
  } else {
    console.log(`granted; ${answer.charges[0].remaining} left`);
  }
  client.close();
});
