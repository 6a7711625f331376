#include "server/service/receipt.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/strings.h"

namespace sluice::service {
namespace {

// The version of a plain acquisition. The others follow in the order of Receipt::Kind.
constexpr uint8_t kVersion = 1;
constexpr uint8_t kHasRequestId = 0x80;
constexpr size_t kHeaderBytes = 1 + 8 + 8 + 8 + 1;
// Of one charge, at most.
constexpr size_t kChargeBytes =
    1 + common::bounds::kMaxLimitNameBytes + 2 + common::bounds::kMaxKeyBytes + 8 + 2;
static_assert(kHeaderBytes + common::bounds::kMaxCharges * kChargeBytes + store::RequestId::kBytes +
                  kReceiptMacBytes <=
              common::bounds::kMaxReceiptBytes);

template <typename T>
void AppendInteger(T value, std::string* out) {
  for (size_t i = 0; i < sizeof(T); ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

// Removes an integer from the front. REQUIRES: there are enough bytes.
template <typename T>
T TakeInteger(std::string_view* bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<T>(static_cast<uint8_t>((*bytes)[i])) << (8 * i));
  }
  bytes->remove_prefix(sizeof(T));
  return value;
}

// Removes a length and a string of that length from the front. Returns false if bytes are missing.
template <typename Length>
bool TakeString(std::string_view* bytes, std::string_view* out) {
  if (bytes->size() < sizeof(Length)) return false;
  const size_t length = TakeInteger<Length>(bytes);
  if (bytes->size() < length) return false;
  *out = bytes->substr(0, length);
  bytes->remove_prefix(length);
  return true;
}

// HMAC-SHA256. Not thread-safe. One is kept for each thread: looking the algorithm up and setting
// the key take four times as long as the MAC of a receipt.
class Hmac {
 public:
  Hmac() {
    EVP_MAC* const algorithm = EVP_MAC_fetch(nullptr, OSSL_MAC_NAME_HMAC, nullptr);
    context_ = EVP_MAC_CTX_new(algorithm);
    EVP_MAC_free(algorithm);
  }
  ~Hmac() { EVP_MAC_CTX_free(context_); }
  Hmac(const Hmac&) = delete;
  Hmac& operator=(const Hmac&) = delete;

  // `serial`: of the key.
  ReceiptMac Of(std::string_view bytes, const ReceiptKey& key, uint64_t serial) {
    std::array<unsigned char, EVP_MAX_MD_SIZE> full;
    size_t size = 0;
    const bool begun =
        serial == serial_ ? EVP_MAC_init(context_, nullptr, 0, nullptr) == 1 : SetKey(key, serial);
    if (!begun ||
        EVP_MAC_update(context_, reinterpret_cast<const unsigned char*>(bytes.data()),
                       bytes.size()) != 1 ||
        EVP_MAC_final(context_, full.data(), &size, full.size()) != 1) {
      std::abort();  // out of memory
    }
    ReceiptMac mac;
    std::memcpy(mac.data(), full.data(), mac.size());
    return mac;
  }

 private:
  bool SetKey(const ReceiptKey& key, uint64_t serial) {
    std::array<char, 7> digest = {"SHA256"};
    const std::array<OSSL_PARAM, 2> parameters = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest.data(), 0),
        OSSL_PARAM_construct_end()};
    serial_ = serial;
    return EVP_MAC_init(context_, key.data(), key.size(), parameters.data()) == 1;
  }

  EVP_MAC_CTX* context_;
  uint64_t serial_ = 0;  // of the key that is set
};

// Takes off the permits of each charge what was added for others (ReceiptCharge::own).
void FindOwn(std::vector<ReceiptCharge>* charges) {
  // The sets are transitive, so a charge has more of them than each of those in its set.
  for (int size = 0; size < static_cast<int>(charges->size()); ++size) {
    for (ReceiptCharge& charge : *charges) {
      if (std::popcount(charge.charged_by) != size) continue;
      charge.own = charge.permits;
      for (uint32_t left = charge.charged_by; left != 0; left &= left - 1) {
        charge.own -= std::min(charge.own, (*charges)[std::countr_zero(left)].own);
      }
    }
  }
}

}  // namespace

ReceiptSigner::ReceiptSigner() {
  ReceiptKey key;
  // Without randomness receipts could be forged, so the server does not start.
  if (RAND_bytes(key.data(), key.size()) != 1 ||
      RAND_bytes(reinterpret_cast<unsigned char*>(&instance_), sizeof(instance_)) != 1) {
    std::abort();
  }
  Add(key);
}

ReceiptSigner::ReceiptSigner(uint64_t instance, const ReceiptKey& key) : instance_(instance) {
  Add(key);
}

void ReceiptSigner::Add(const ReceiptKey& key) {
  common::MutexLock lock(&mu_);
  const Secret* const before = newest_.load(std::memory_order_relaxed);
  if (before != nullptr && before->bytes == key) return;
  static std::atomic<uint64_t> serials{0};  // of all signers
  secrets_.push_back(std::make_unique<const Secret>(Secret{key, ++serials, before}));
  newest_.store(secrets_.back().get(), std::memory_order_release);
}

std::string ReceiptSigner::Key() const {
  const Secret& secret = *newest_.load(std::memory_order_acquire);
  return absl::BytesToHexString(
      {reinterpret_cast<const char*>(secret.bytes.data()), secret.bytes.size()});
}

absl::Status ReceiptSigner::UseKey(std::string_view hex) {
  ReceiptKey key;
  const bool good = hex.size() == 2 * key.size() &&
                    hex.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  if (!good) {
    return absl::InvalidArgumentError(absl::StrCat("a receipt key is ", 2 * key.size(),
                                                   " hexadecimal digits, not ", hex.size(),
                                                   " characters of another kind"));
  }
  const std::string bytes = absl::HexStringToBytes(common::ToAbsl(hex));
  std::memcpy(key.data(), bytes.data(), key.size());
  Add(key);
  return absl::OkStatus();
}

ReceiptMac ReceiptSigner::Mac(const Secret& secret, std::string_view bytes) {
  thread_local Hmac hmac;
  return hmac.Of(bytes, secret.bytes, secret.serial);
}

void ReceiptSigner::Append(uint64_t id, int64_t grant_time_ns,
                           absl::Span<const store::Charge> charges, std::string* out,
                           Receipt::Kind kind, const uint16_t* charged_by,
                           const store::Once* once) const {
  const size_t start = out->size();
  out->push_back(static_cast<char>((kVersion + static_cast<uint8_t>(kind)) |
                                   (once == nullptr ? 0 : kHasRequestId)));
  AppendInteger(instance_, out);
  AppendInteger(id, out);
  AppendInteger(static_cast<uint64_t>(grant_time_ns), out);
  out->push_back(static_cast<char>(charges.size()));
  for (const store::Charge& charge : charges) {
    out->push_back(static_cast<char>(charge.rule->limit_name.size()));
    out->append(charge.rule->limit_name);
    AppendInteger(static_cast<uint16_t>(charge.key.size()), out);
    out->append(charge.key);
    AppendInteger(charge.permits, out);
    if (kind == Receipt::Kind::kAcquisition) continue;
    AppendInteger(charged_by == nullptr ? uint16_t{0} : charged_by[&charge - charges.data()], out);
  }
  if (once != nullptr) out->append(once->id.bytes());
  const auto mac =
      Mac(*newest_.load(std::memory_order_acquire), std::string_view(*out).substr(start));
  out->append(reinterpret_cast<const char*>(mac.data()), mac.size());
}

absl::Status ReceiptSigner::Open(std::string_view bytes, Receipt* receipt) const {
  receipt->charges.clear();
  receipt->request_id.reset();
  absl::Status bad = common::errors::BadReceipt(bytes.size());
  if (bytes.size() < kHeaderBytes + kReceiptMacBytes ||
      bytes.size() > common::bounds::kMaxReceiptBytes) {
    return bad;
  }
  std::string_view rest = bytes.substr(0, bytes.size() - kReceiptMacBytes);
  bool issued_here = false;
  const Secret* secret = newest_.load(std::memory_order_acquire);
  for (int i = 0; secret != nullptr && i < kKeysTried && !issued_here; ++i) {
    const auto mac = Mac(*secret, rest);
    issued_here = CRYPTO_memcmp(mac.data(), bytes.data() + rest.size(), mac.size()) == 0;
    secret = secret->before;
  }

  const auto version = TakeInteger<uint8_t>(&rest);
  const bool has_request_id = (version & kHasRequestId) != 0;
  const int kind = (version & ~kHasRequestId) - kVersion;
  if (kind < 0 || kind > static_cast<int>(Receipt::Kind::kSlots)) return bad;
  receipt->kind = static_cast<Receipt::Kind>(kind);
  const bool settles = receipt->kind != Receipt::Kind::kAcquisition;
  const uint64_t instance = TakeInteger<uint64_t>(&rest);
  receipt->id = TakeInteger<uint64_t>(&rest);
  receipt->grant_time_ns = static_cast<int64_t>(TakeInteger<uint64_t>(&rest));
  const size_t charges = TakeInteger<uint8_t>(&rest);
  if (!issued_here) return instance != instance_ ? common::errors::ForeignReceipt() : bad;
  for (size_t i = 0; i < charges; ++i) {
    ReceiptCharge& charge = receipt->charges.emplace_back();
    if (!TakeString<uint8_t>(&rest, &charge.limit) || !TakeString<uint16_t>(&rest, &charge.key) ||
        rest.size() < sizeof(uint64_t) + (settles ? sizeof(uint16_t) : 0)) {
      return bad;
    }
    charge.permits = TakeInteger<uint64_t>(&rest);
    if (settles) charge.charged_by = TakeInteger<uint16_t>(&rest);
  }
  if (settles) FindOwn(&receipt->charges);
  if (has_request_id && rest.size() == store::RequestId::kBytes) {
    receipt->request_id = store::RequestId::From(rest);
    rest = {};
  }
  return rest.empty() ? absl::OkStatus() : bad;
}

}  // namespace sluice::service
