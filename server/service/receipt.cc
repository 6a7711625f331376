#include "server/service/receipt.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/strings.h"

namespace sluice::service {
namespace {

constexpr uint8_t kVersion = 1;
constexpr size_t kHeaderBytes = 1 + 8 + 8 + 8 + 1;

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
  secrets_.push_back(std::make_unique<const Secret>(Secret{key, before}));
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
  unsigned char full[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (HMAC(EVP_sha256(), secret.bytes.data(), secret.bytes.size(),
           reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), full,
           &size) == nullptr) {
    std::abort();  // out of memory
  }
  ReceiptMac mac;
  std::memcpy(mac.data(), full, mac.size());
  return mac;
}

void ReceiptSigner::Append(uint64_t id, int64_t grant_time_ns,
                           absl::Span<const store::Charge> charges, std::string* out) const {
  const size_t start = out->size();
  out->push_back(static_cast<char>(kVersion));
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
  }
  const auto mac =
      Mac(*newest_.load(std::memory_order_acquire), std::string_view(*out).substr(start));
  out->append(reinterpret_cast<const char*>(mac.data()), mac.size());
}

absl::Status ReceiptSigner::Open(std::string_view bytes, Receipt* receipt) const {
  receipt->charges.clear();
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

  if (TakeInteger<uint8_t>(&rest) != kVersion) return bad;
  const uint64_t instance = TakeInteger<uint64_t>(&rest);
  receipt->id = TakeInteger<uint64_t>(&rest);
  receipt->grant_time_ns = static_cast<int64_t>(TakeInteger<uint64_t>(&rest));
  const size_t charges = TakeInteger<uint8_t>(&rest);
  if (!issued_here) return instance != instance_ ? common::errors::ForeignReceipt() : bad;
  for (size_t i = 0; i < charges; ++i) {
    ReceiptCharge& charge = receipt->charges.emplace_back();
    if (!TakeString<uint8_t>(&rest, &charge.limit) || !TakeString<uint16_t>(&rest, &charge.key) ||
        rest.size() < sizeof(uint64_t)) {
      return bad;
    }
    charge.permits = TakeInteger<uint64_t>(&rest);
  }
  return rest.empty() ? absl::OkStatus() : bad;
}

}  // namespace sluice::service
