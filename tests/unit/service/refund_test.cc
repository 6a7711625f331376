#include <string>

#include "tests/unit/service/fixture.h"

namespace sluice::service {
namespace {

using testing::HasSubstr;
using testing::Not;

class RefundTest : public ServiceTest {
 protected:
  void SetUp() override {
    auto child = PerSecond("child", 10);
    child.charges = {"parent"};
    Load({child, PerSecond("parent", 100)});
  }
  std::string Receipt(uint64_t permits) {
    const AcquisitionResult result = Acquire("child", "k", permits, {.want_receipt = true});
    EXPECT_TRUE(result.granted);
    return std::string(result.receipt);
  }
};

TEST_F(RefundTest, RefundsEveryBucketOnce) {
  const std::string receipt = Receipt(4);
  EXPECT_EQ(Remaining("child", "k"), 6);
  RefundCall call;
  ASSERT_TRUE(Refund(receipt, &call).ok());
  EXPECT_EQ(call.outcome(), store::RefundOutcome::kRefunded);
  ASSERT_EQ(call.size(), 2u);
  EXPECT_EQ(call.charge(0).limit, "child");
  EXPECT_EQ(call.charge(0).key, "k");
  EXPECT_EQ(call.charge(0).permits, 4u);
  EXPECT_EQ(call.charge(1).limit, "parent");
  EXPECT_EQ(call.charge(1).permits, 4u);
  EXPECT_EQ(Remaining("child", "k"), 10);
  EXPECT_EQ(Remaining("parent", ""), 100);

  ASSERT_TRUE(Refund(receipt, &call).ok());
  EXPECT_EQ(call.outcome(), store::RefundOutcome::kAlreadyRefunded);
  EXPECT_EQ(call.charge(0).permits, 0u);
  EXPECT_EQ(Remaining("child", "k"), 10);
}

TEST_F(RefundTest, RefundsNothingOnceTheBucketsWereFull) {
  const std::string receipt = Receipt(4);
  clock_.Advance(10 * kSecond);
  RefundCall call;
  ASSERT_TRUE(Refund(receipt, &call).ok());
  EXPECT_EQ(call.outcome(), store::RefundOutcome::kExpired);
  EXPECT_EQ(call.charge(0).permits, 0u);
}

TEST_F(RefundTest, RejectsReceiptsWithAChangedOrMissingByte) {
  const std::string receipt = Receipt(4);
  RefundCall call;
  for (size_t i = 0; i < receipt.size(); ++i) {
    std::string forged = receipt;
    forged[i] = static_cast<char>(forged[i] ^ 1);
    EXPECT_EQ(Refund(forged, &call).code(), absl::StatusCode::kInvalidArgument) << i;
    EXPECT_EQ(Refund(receipt.substr(0, i), &call).code(), absl::StatusCode::kInvalidArgument) << i;
  }
  EXPECT_EQ(Refund(receipt + "x", &call).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Refund(std::string(100'000, 'x'), &call).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Remaining("child", "k"), 6);
  ASSERT_TRUE(Refund(receipt, &call).ok()) << "the true one is still worth its permits";
  EXPECT_EQ(call.outcome(), store::RefundOutcome::kRefunded);
}

TEST_F(RefundTest, RejectsReceiptsSplicedFromTwoLimits) {
  const std::string of_parent =
      std::string(Acquire("parent", "k", 4, {.want_receipt = true}).receipt);
  const std::string of_child = Receipt(4);
  RefundCall call;
  // The beginning of one with the rest, and so the MAC, of the other, spliced at every place.
  for (size_t i = 1; i < std::min(of_child.size(), of_parent.size()); ++i) {
    const std::string mixed = of_child.substr(0, i) + of_parent.substr(i);
    if (mixed == of_child || mixed == of_parent) continue;
    EXPECT_EQ(Refund(mixed, &call).code(), absl::StatusCode::kInvalidArgument) << i;
  }
  ASSERT_TRUE(Refund(of_parent, &call).ok());
  EXPECT_EQ(call.outcome(), store::RefundOutcome::kRefunded);
  EXPECT_EQ(Remaining("parent", "k"), 100);
  EXPECT_EQ(Remaining("child", "k"), 6);
}

TEST_F(RefundTest, ReportsAReceiptFromBeforeARestart) {
  const ReceiptSigner another;
  RateLimiter restarted(registry_, store_, clock_, metrics_, usage_, another);
  RefundCall call;
  call.Reset(Receipt(4));
  restarted.Refund(&call, store::kNoDeadline, [](void*, RefundCall*) {}, nullptr);
  EXPECT_EQ(call.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(call.status().message()), HasSubstr("before this one was restarted"));
}

TEST_F(RefundTest, RefundsTheBucketsWhoseLimitsWereNotDeleted) {
  const std::string receipt = Receipt(4);
  Load({PerSecond("parent", 100)});
  RefundCall call;
  ASSERT_TRUE(Refund(receipt, &call).ok());
  EXPECT_EQ(call.outcome(), store::RefundOutcome::kRefunded);
  EXPECT_EQ(call.charge(0).permits, 0u);
  EXPECT_EQ(call.charge(1).permits, 4u);
  EXPECT_EQ(Remaining("parent", ""), 100);
  ASSERT_TRUE(Refund(receipt, &call).ok());
  EXPECT_EQ(call.outcome(), store::RefundOutcome::kAlreadyRefunded);
}

// A limit that its `charges` do not add any longer needs a right of its own.
TEST_F(RefundTest, DeletedLimitGivesNoRightToRefundTheOthersOfItsReceipt) {
  const access::Clients clients = ClientsThatMayUse("child");
  const auto refund = [&](const std::string& receipt, access::CallerPtr caller) {
    RefundCall call;
    call.Reset(receipt);
    call.UseCaller(std::move(caller));
    limiter_.Refund(&call, store::kNoDeadline, [](void*, RefundCall*) {}, nullptr);
    return call.status();
  };
  EXPECT_EQ(refund(Receipt(4), clients.Recognise({})), absl::OkStatus());
  EXPECT_EQ(Remaining("parent", ""), 100);
  const std::string receipt = Receipt(4);
  Load({PerSecond("parent", 100)});
  const absl::Status status = refund(receipt, clients.Recognise({}));
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("may not use the limit \"parent\""));
  EXPECT_EQ(Remaining("parent", ""), 96);
  EXPECT_EQ(refund(receipt, nullptr), absl::OkStatus());
  EXPECT_EQ(Remaining("parent", ""), 100);
}

TEST_F(RefundTest, ExpiresWhenAllItsLimitsAreDeleted) {
  const std::string receipt = Receipt(4);
  Load({PerSecond("other", 100)});
  RefundCall call;
  ASSERT_TRUE(Refund(receipt, &call).ok());
  EXPECT_EQ(call.outcome(), store::RefundOutcome::kExpired);
}

TEST_F(RefundTest, RefundsNothingAfterTheDeadline) {
  RefundCall call;
  call.Reset(Receipt(4));
  limiter_.Refund(&call, clock_.NowNs() - 1, [](void*, RefundCall*) {}, nullptr);
  EXPECT_EQ(call.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Remaining("child", "k"), 6);
}

TEST(ReceiptSignerTest, OpensReceiptsOfASignerWithTheSameKey) {
  store::Rule rule;
  rule.limit_name = "api";
  const store::Charge charge{&rule, "k", 3};
  const auto by = [&](const ReceiptSigner& signer) {
    std::string bytes;
    signer.Append(7, 0, absl::MakeConstSpan(&charge, 1), &bytes);
    return bytes;
  };
  const auto opens = [](const ReceiptSigner& signer, const std::string& bytes) {
    Receipt receipt;
    return signer.Open(bytes, &receipt).ok();
  };
  ReceiptSigner one;
  ReceiptSigner two;
  const std::string before = by(two);
  EXPECT_FALSE(opens(one, before));
  ASSERT_TRUE(two.UseKey(one.Key()).ok());
  EXPECT_EQ(two.Key(), one.Key());
  EXPECT_TRUE(opens(one, by(two)));
  EXPECT_TRUE(opens(two, by(one)));
  EXPECT_TRUE(opens(two, before)) << "its own from before are still good";
  EXPECT_FALSE(opens(one, before));
  // Only the last few keys are tried.
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(two.UseKey(ReceiptSigner().Key()).ok());
  EXPECT_FALSE(opens(two, before));
}

TEST(ReceiptSignerTest, RejectsBadKeysWithoutShowingThem) {
  ReceiptSigner signer;
  const std::string key = signer.Key();
  ASSERT_EQ(key.size(), 64u);
  for (const std::string& bad :
       {std::string(), key.substr(1), key + "0", std::string(64, 'x'), std::string("hunter2")}) {
    const absl::Status status = signer.UseKey(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    if (!bad.empty()) {
      EXPECT_THAT(std::string(status.message()), Not(HasSubstr(bad)));
    }
  }
  EXPECT_EQ(signer.Key(), key);
}

TEST(ReceiptSignerTest, FitsSixteenChargesWithTheLongestNamesAndKeys) {
  store::Rule rule;
  rule.limit_name = std::string(common::bounds::kMaxLimitNameBytes, 'n');
  const std::string key(common::bounds::kMaxKeyBytes, 'k');
  const std::vector<store::Charge> charges(16, store::Charge{&rule, key, ~uint64_t{0}});
  const ReceiptSigner signer;
  std::string bytes = "before";
  signer.Append(7, 11, charges, &bytes);
  ASSERT_LE(bytes.size() - 6, common::bounds::kMaxReceiptBytes);
  Receipt receipt;
  ASSERT_TRUE(signer.Open(std::string_view(bytes).substr(6), &receipt).ok());
  EXPECT_EQ(receipt.id, 7u);
  EXPECT_EQ(receipt.grant_time_ns, 11);
  ASSERT_EQ(receipt.charges.size(), 16u);
  EXPECT_EQ(receipt.charges[15].limit, rule.limit_name);
  EXPECT_EQ(receipt.charges[15].key, key);
  EXPECT_EQ(receipt.charges[15].permits, ~uint64_t{0});
  EXPECT_FALSE(receipt.request_id.has_value());
}

TEST(ReceiptTest, CarriesTheRequestId) {
  ReceiptSigner signer;
  store::Rule rule;
  rule.limit_name = "day";
  const store::Charge charge{&rule, "k", 3};
  store::Once once;
  once.id = store::RequestId::From("0123456789abcdef");
  std::string bytes;
  signer.Append(7, 0, absl::MakeConstSpan(&charge, 1), &bytes, Receipt::Kind::kAcquisition, nullptr,
                &once);
  Receipt receipt;
  ASSERT_TRUE(signer.Open(bytes, &receipt).ok());
  EXPECT_EQ(receipt.request_id, once.id);
  EXPECT_EQ(receipt.charges.size(), 1u);
  std::string without;
  signer.Append(7, 0, absl::MakeConstSpan(&charge, 1), &without);
  ASSERT_TRUE(signer.Open(without, &receipt).ok());
  EXPECT_FALSE(receipt.request_id.has_value());
}

}  // namespace
}  // namespace sluice::service
