/* The C interface against a real server: c_interface_test HOST:PORT
 * Limits: api stores 2 permits and refills none; wide stores 1000. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sluice/sluice.h"

#define CHECK(condition)                                                \
  do {                                                                  \
    if (!(condition)) {                                                 \
      fprintf(stderr, "line %d: not true: %s\n", __LINE__, #condition); \
      exit(1);                                                          \
    }                                                                   \
  } while (0)

static sluice_client* connect_to(const char* servers) {
  sluice_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.servers = servers;
  options.deadline_ns = 20LL * 1000 * 1000 * 1000;
  char error[256] = "";
  sluice_client* client = sluice_create(&options, error, sizeof error);
  if (client == NULL) fprintf(stderr, "%s\n", error);
  CHECK(client != NULL);
  return client;
}

static void grants_until_the_bucket_is_empty(sluice_client* client) {
  const sluice_charge charge = {"api", "c", 1, 1};
  sluice_acquisition acquisition = {&charge, 1, 0, 0, 0, 0};
  sluice_decision decision;
  for (int left = 1; left >= 0; --left) {
    CHECK(sluice_acquire(client, &acquisition, &decision) == SLUICE_OK);
    CHECK(decision.granted && decision.source == SLUICE_SOURCE_STORE);
    CHECK(decision.charge_count == 1 && decision.charges[0].remaining == left);
    CHECK(decision.charges[0].capacity == 2 && decision.receipt_size == 0);
    CHECK(strcmp(decision.charges[0].reason, "") == 0 && strcmp(decision.message, "") == 0);
    sluice_decision_clear(&decision);
    CHECK(decision.owner == NULL && decision.charges == NULL);
  }
  CHECK(sluice_acquire(client, &acquisition, &decision) == SLUICE_OK);
  CHECK(!decision.granted && decision.retry_after_ns > 0);
  CHECK(strcmp(decision.charges[0].reason, "not_enough") == 0);
  sluice_decision_clear(&decision);
}

static void an_error_has_its_code_and_text(sluice_client* client) {
  const sluice_charge charge = {"no-such-limit", NULL, 0, 1};
  const sluice_acquisition acquisition = {&charge, 1, 0, 0, 0, 0};
  sluice_decision decision;
  CHECK(sluice_acquire(client, &acquisition, &decision) == SLUICE_NOT_FOUND);
  CHECK(decision.code == SLUICE_NOT_FOUND && !decision.granted);
  CHECK(strstr(decision.message, "no-such-limit") != NULL);
  sluice_decision_clear(&decision);
}

static void each_acquisition_of_a_batch_has_its_answer(sluice_client* client) {
  const sluice_charge charges[3] = {
      {"wide", "b", 1, 10}, {"no-such-limit", "b", 1, 1}, {"wide", "b", 1, 20}};
  sluice_acquisition batch[3];
  memset(batch, 0, sizeof batch);
  for (int i = 0; i < 3; ++i) {
    batch[i].charges = &charges[i];
    batch[i].charge_count = 1;
  }
  sluice_decision decisions[3];
  CHECK(sluice_acquire_batch(client, batch, 3, 0, decisions) == SLUICE_OK);
  CHECK(decisions[0].granted && decisions[0].charges[0].remaining == 990);
  CHECK(decisions[1].code == SLUICE_NOT_FOUND);
  CHECK(decisions[2].granted && decisions[2].charges[0].remaining == 970);
  for (int i = 0; i < 3; ++i) sluice_decision_clear(&decisions[i]);
}

static void a_receipt_gives_permits_back_once(sluice_client* client) {
  const sluice_charge charge = {"wide", "r", 1, 7};
  const sluice_acquisition acquisition = {&charge, 1, 0, 0, 0, 1};
  sluice_decision decision;
  CHECK(sluice_acquire(client, &acquisition, &decision) == SLUICE_OK);
  CHECK(decision.receipt_size > 0);
  sluice_refund_result refund;
  CHECK(sluice_refund(client, decision.receipt, decision.receipt_size, decision.server, &refund) ==
        SLUICE_OK);
  /* The bucket has gained a fraction of a permit meanwhile. */
  CHECK(refund.outcome == SLUICE_REFUNDED && refund.permits >= 6 && refund.permits <= 7);
  sluice_refund_result_clear(&refund);
  CHECK(sluice_refund(client, decision.receipt, decision.receipt_size, decision.server, &refund) ==
        SLUICE_OK);
  CHECK(refund.outcome == SLUICE_ALREADY_REFUNDED && refund.permits == 0);
  sluice_refund_result_clear(&refund);
  CHECK(sluice_refund(client, "forged", 6, 0, &refund) == SLUICE_INVALID_ARGUMENT);
  CHECK(strstr(refund.message, "receipt") != NULL);
  sluice_refund_result_clear(&refund);
  sluice_decision_clear(&decision);

  const sluice_bucket buckets[2] = {{"wide", "r", 1}, {"wide", NULL, 0}};
  sluice_bucket_status statuses[2];
  CHECK(sluice_query(client, buckets, 2, statuses) == SLUICE_OK);
  CHECK(statuses[0].code == SLUICE_OK && statuses[0].remaining == 1000);
  CHECK(statuses[1].capacity == 1000 && !statuses[1].exists);
  for (int i = 0; i < 2; ++i) sluice_bucket_status_clear(&statuses[i]);
  const sluice_bucket unknown = {"no-such-limit", NULL, 0};
  sluice_query(client, &unknown, 1, statuses);
  CHECK(statuses[0].code == SLUICE_NOT_FOUND);
  sluice_bucket_status_clear(&statuses[0]);
}

static void submitted_acquisitions_come_by_the_descriptor(sluice_client* client) {
  enum { kCount = 500 };
  for (uint64_t tag = 0; tag < kCount; ++tag) {
    char key[24];
    const int size = snprintf(key, sizeof key, "s%d", (int)(tag % 50));
    const sluice_charge charge = {"wide", key, (size_t)size, 1};
    const sluice_acquisition acquisition = {&charge, 1, 0, 0, 0, 0};
    sluice_submit(client, &acquisition, tag);
  }
  char seen[kCount] = {0};
  int count = 0;
  while (count < kCount) {
    struct pollfd wait = {sluice_fd(client), POLLIN, 0};
    CHECK(poll(&wait, 1, 20000) == 1);
    sluice_completion completions[16];
    const size_t taken = sluice_poll(client, completions, 16);
    for (size_t i = 0; i < taken; ++i) {
      CHECK(completions[i].tag < kCount && !seen[completions[i].tag]);
      seen[completions[i].tag] = 1;
      CHECK(completions[i].decision.granted);
      sluice_decision_clear(&completions[i].decision);
    }
    count += (int)taken;
  }
  struct pollfd wait = {sluice_fd(client), POLLIN, 0};
  CHECK(poll(&wait, 1, 0) == 0);
  sluice_completion none;
  CHECK(sluice_poll(client, &none, 1) == 0);
}

static void destroy_ends_what_was_submitted(const char* server) {
  sluice_client* client = connect_to(server);
  const sluice_charge charge = {"wide", "d", 1, 1};
  const sluice_acquisition acquisition = {&charge, 1, 0, 0, 0, 0};
  for (uint64_t tag = 0; tag < 100; ++tag) sluice_submit(client, &acquisition, tag);
  sluice_destroy(client);
  sluice_destroy(NULL);
}

static void wrong_options_are_refused_with_the_reason(void) {
  sluice_options options;
  memset(&options, 0, sizeof options);
  char error[256] = "";
  CHECK(sluice_create(&options, error, sizeof error) == NULL);
  CHECK(strstr(error, "size is 0") != NULL);
  options.size = sizeof options;
  options.servers = "localhost";
  CHECK(sluice_create(&options, error, sizeof error) == NULL);
  CHECK(strstr(error, "localhost") != NULL);
  char cut[8];
  CHECK(sluice_create(&options, cut, sizeof cut) == NULL);
  CHECK(strlen(cut) == sizeof cut - 1);
  CHECK(sluice_create(&options, NULL, 0) == NULL);
  options.servers = "127.0.0.1:1";
  options.tls_ca_file = "/no/such/file";
  CHECK(sluice_create(&options, error, sizeof error) == NULL);
  CHECK(strstr(error, "/no/such/file") != NULL);
}

static void without_a_server_the_option_decides(void) {
  sluice_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.servers = "127.0.0.1:1";
  options.deadline_ns = 200 * 1000 * 1000;
  for (int allow = 0; allow <= 1; ++allow) {
    options.on_unavailable_allow = allow;
    sluice_client* client = sluice_create(&options, NULL, 0);
    CHECK(client != NULL);
    const sluice_charge charge = {"api", "c", 1, 1};
    const sluice_acquisition acquisition = {&charge, 1, 0, 0, 0, 0};
    sluice_decision decision;
    CHECK(sluice_acquire(client, &acquisition, &decision) == SLUICE_OK);
    CHECK(decision.granted == allow && decision.source == SLUICE_SOURCE_UNAVAILABLE);
    CHECK(!decision.may_have_executed && strstr(decision.message, "127.0.0.1:1") != NULL);
    sluice_decision_clear(&decision);
    sluice_destroy(client);
  }
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  CHECK(strcmp(sluice_version(), SLUICE_EXPECTED_VERSION) == 0);
  sluice_client* client = connect_to(argv[1]);
  grants_until_the_bucket_is_empty(client);
  an_error_has_its_code_and_text(client);
  each_acquisition_of_a_batch_has_its_answer(client);
  a_receipt_gives_permits_back_once(client);
  submitted_acquisitions_come_by_the_descriptor(client);
  sluice_destroy(client);
  destroy_ends_what_was_submitted(argv[1]);
  wrong_options_are_refused_with_the_reason();
  without_a_server_the_option_decides();
  printf("as expected\n");
  return 0;
}
