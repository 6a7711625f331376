/* The C interface of the client: what programs in other languages bind to. C99; needs no other
 * header of Sluice. The library is libsluice.so.1.
 *
 *   sluice_options options = {sizeof options};
 *   options.servers = "127.0.0.1:7200";
 *   char error[256];
 *   sluice_client* client = sluice_create(&options, error, sizeof error);
 *   sluice_charge charge = {"api", "user:42", 7, 1};
 *   sluice_acquisition acquisition = {&charge, 1};
 *   sluice_decision decision;
 *   if (sluice_acquire(client, &acquisition, &decision) == SLUICE_OK && decision.granted) ...
 *   sluice_decision_clear(&decision);
 *
 * Rules for all functions
 *  - Times are nanoseconds. Texts are UTF-8; those without a size end with a zero byte.
 *  - A function that fills in a result returns its code, too. The caller owns the result and ends
 *    it with its clear function, whatever the code is; texts and arrays in it live until then.
 *  - What a call is given (acquisitions, texts) is copied and can go when the call returns.
 *  - A client is thread-safe, but no call may run beside or after sluice_destroy.
 *  - Structures that the caller fills in must be zeroed first. Fields that are zero have their
 *    defaults.
 *  - After fork, the child must not use the parent's clients.
 */
#ifndef SLUICE_SLUICE_H_
#define SLUICE_SLUICE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* gRPC's status codes. */
enum {
  SLUICE_OK = 0,
  SLUICE_CANCELLED = 1, /* the client was destroyed */
  SLUICE_UNKNOWN = 2,
  SLUICE_INVALID_ARGUMENT = 3, /* the message has the field, the value and a correction */
  SLUICE_DEADLINE_EXCEEDED = 4,
  SLUICE_NOT_FOUND = 5, /* no such limit */
  SLUICE_ALREADY_EXISTS = 6,
  SLUICE_PERMISSION_DENIED = 7,
  SLUICE_RESOURCE_EXHAUSTED = 8,
  SLUICE_FAILED_PRECONDITION = 9,
  SLUICE_ABORTED = 10,
  SLUICE_OUT_OF_RANGE = 11,
  SLUICE_UNIMPLEMENTED = 12,
  SLUICE_INTERNAL = 13,
  SLUICE_UNAVAILABLE = 14,
  SLUICE_DATA_LOSS = 15,
  SLUICE_UNAUTHENTICATED = 16
};

/* What decided; as sluice::Source. */
enum {
  SLUICE_SOURCE_STORE = 1,
  SLUICE_SOURCE_STORE_UNAVAILABLE = 3,
  SLUICE_SOURCE_OVERFLOW = 4,
  SLUICE_SOURCE_LOCAL = 5,
  SLUICE_SOURCE_UNAVAILABLE = 100 /* no server decided; see `message` */
};

enum { SLUICE_REFUNDED = 1, SLUICE_ALREADY_REFUNDED = 2, SLUICE_EXPIRED = 3 };

typedef struct sluice_client sluice_client;

typedef struct sluice_options {
  size_t size;                  /* sizeof(sluice_options); later versions add fields at the end */
  const char* servers;          /* "HOST:PORT,HOST:PORT" or "unix:PATH"; null: 127.0.0.1:7200 */
  const char* token;            /* null: none */
  int64_t deadline_ns;          /* of a call with its retries; 0: 1 s; INT64_MAX: none */
  int32_t on_unavailable_allow; /* not 0: grant while no server decides. 0: deny */
  int32_t tls;                  /* not 0: use TLS; implied by any of the files */
  const char* tls_ca_file;      /* PEM; null: the system's roots */
  const char* tls_cert_file;    /* PEM, with tls_key_file: the client's own certificate */
  const char* tls_key_file;
  const char* tls_server_name; /* null: the host of the address */
  /* not 0: each acquisition gets a random request id, and one that may have been executed is
   * repeated until its deadline; its permits are taken once. Several servers must share a Redis.
   * Not with `hold`. */
  int32_t exactly_once;
  int32_t reserved;
} sluice_options;

/* Permits from one bucket. */
typedef struct sluice_charge {
  const char* limit;
  const char* key;  /* null: the limit's shared bucket */
  size_t key_size;  /* bytes */
  uint64_t permits; /* 0: INVALID_ARGUMENT */
} sluice_charge;

/* One or several charges, granted all or none. */
typedef struct sluice_acquisition {
  const sluice_charge* charges;
  size_t charge_count;  /* 1 to 16 */
  int64_t max_wait_ns;  /* 0: granted now or denied; else: reserve at most that far ahead */
  int64_t deadline_ns;  /* 0: the client's; not used in a batch */
  int32_t hold;         /* not 0: the answer comes at the grant time; not in a batch */
  int32_t want_receipt; /* not 0: for sluice_refund */
} sluice_acquisition;

/* A bucket after the decision. */
typedef struct sluice_charge_status {
  const char* limit; /* of a charge that a limit added; "" for those that were asked for */
  int64_t remaining; /* negative: permits owed */
  uint64_t capacity;
  int64_t reset_after_ns;
  const char* reason;  /* why this charge denied, for example "not_enough"; "": it did not */
  int64_t held_for_ns; /* granted slots: until they are taken back; counted from the grant time */
} sluice_charge_status;

typedef struct sluice_decision {
  int32_t code; /* not SLUICE_OK: an error; nothing else but `message` is set */
  int32_t granted;
  int32_t source;
  int32_t may_have_executed; /* without an answer: permits may have been taken nevertheless */
  int64_t retry_after_ns;    /* denied: when to try again */
  int64_t wait_ns;           /* granted: wait this long before the work */
  const sluice_charge_status* charges;
  size_t charge_count;
  const void* receipt; /* opaque bytes */
  size_t receipt_size;
  uint32_t server;     /* the index of the server that answered, for sluice_refund */
  int32_t repeated;    /* not 0: an earlier attempt was granted, and this is that grant */
  const char* message; /* the error, or why no server decided; else "" */
  void* owner;         /* used by sluice_decision_clear */
} sluice_decision;

typedef struct sluice_bucket {
  const char* limit;
  const char* key; /* null: the limit's shared bucket */
  size_t key_size;
} sluice_bucket;

typedef struct sluice_bucket_status {
  int32_t code;   /* not SLUICE_OK: the bucket could not be read; only `message` is set */
  int32_t exists; /* a bucket that does not exist is full */
  int32_t source;
  uint32_t reserved;
  int64_t remaining;
  uint64_t capacity;
  int64_t reset_after_ns;
  int64_t next_permit_after_ns;
  uint64_t waiting; /* reservations to come, and callers in slot queues */
  int64_t next_grant_after_ns;
  uint64_t open_receipts; /* that can still give permits back, without those of reservations */
  uint64_t refundable;    /* whole permits that come back if all of them are refunded now */
  const char* message;
  void* owner; /* used by sluice_bucket_status_clear */
} sluice_bucket_status;

typedef struct sluice_refund_result {
  int32_t code;
  int32_t outcome;  /* SLUICE_REFUNDED, ... */
  int32_t attempts; /* above 1: ALREADY_REFUNDED may be due to an earlier attempt of this call */
  uint32_t reserved;
  uint64_t permits; /* whole permits given back, over all charges */
  const char* message;
  void* owner; /* used by sluice_refund_result_clear */
} sluice_refund_result;

/* Returns null if the options are wrong, with the reason in `error` (cut to error_size; may be
 * null). The first call connects. */
sluice_client* sluice_create(const sluice_options* options, char* error, size_t error_size);

/* Cancels all calls, and returns when none runs. Null: does nothing. */
void sluice_destroy(sluice_client* client);

/* Blocks until the decision. */
int32_t sluice_acquire(sluice_client* client, const sluice_acquisition* acquisition,
                       sluice_decision* decision);

/* Decides 1 to 4096 independent acquisitions in one call. Fills in `count` decisions, each with its
 * own code. Returns the code of the call as a whole: if it is not SLUICE_OK, all decisions have
 * it. */
int32_t sluice_acquire_batch(sluice_client* client, const sluice_acquisition* acquisitions,
                             size_t count, int64_t deadline_ns, sluice_decision* decisions);

void sluice_decision_clear(sluice_decision* decision);

/* ---- For event loops: submit, and poll a file descriptor. */

typedef struct sluice_completion {
  uint64_t tag;
  sluice_decision decision; /* end it with sluice_decision_clear */
} sluice_completion;

/* Sends the acquisition and returns. Its decision comes by sluice_poll, exactly once, with `tag`.
 */
void sluice_submit(sluice_client* client, const sluice_acquisition* acquisition, uint64_t tag);

/* A file descriptor that is readable while decisions wait for sluice_poll. It belongs to the
 * client: do not read or close it. */
int sluice_fd(const sluice_client* client);

/* Takes at most `most` decisions without blocking. Returns their number. */
size_t sluice_poll(sluice_client* client, sluice_completion* completions, size_t most);

/* ---- What remains, and giving back. */

/* The state of 1 to 256 buckets; takes no permits. Fills in `count` results, as
 * sluice_acquire_batch. */
int32_t sluice_query(sluice_client* client, const sluice_bucket* buckets, size_t count,
                     sluice_bucket_status* statuses);
void sluice_bucket_status_clear(sluice_bucket_status* status);

/* Gives the permits of a decision's receipt back, once. `server`: sluice_decision::server. */
int32_t sluice_refund(sluice_client* client, const void* receipt, size_t receipt_size,
                      uint32_t server, sluice_refund_result* result);
void sluice_refund_result_clear(sluice_refund_result* result);

/* The version of the library, for example "0.1.0". */
const char* sluice_version(void);

#ifdef __cplusplus
}
#endif

#endif /* SLUICE_SLUICE_H_ */
