// Receipts: the proof of an acquisition that Refund takes. Opaque to callers; a changed receipt is
// refused.
//
// Layout, integers little-endian:
//
//   1 B   version: 1, or if Settle takes it 2 (settle_within) or 3 (slots, without settle_within);
//         the highest bit is set if it has a request id
//   8 B   instance: random, of this process start
//   8 B   receipt id: the store's serial
//   8 B   grant time of a reservation, on the store's clock; 0: granted for now
//   1 B   charges, 1 to 16
//         each: 1 B name length, name; 2 B key length, key; 8 B permits;
//         if Settle takes it: 2 B the charges whose limits charge this one in turn, as bits
//   16 B  the request id of the acquisition, if it has one
//   16 B  MAC: the first half of HMAC-SHA256 over all before it
//
// The MAC's key is random for each start until UseKey: nodes that share a store use one key, so
// that each node can redeem the receipts of the others.
//
// A receipt carries its charges, so that only the store keeps state. The instance only serves the
// error message: it distinguishes a receipt issued by another server, or before a restart, from one
// that was changed. It proves nothing.
#ifndef SLUICE_SERVER_SERVICE_RECEIPT_H_
#define SLUICE_SERVER_SERVICE_RECEIPT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/mutex.h"
#include "server/store/store.h"

namespace sluice::service {

struct ReceiptCharge {
  std::string_view limit;
  std::string_view key;
  uint64_t permits = 0;
  // If Settle takes it: store::Acquisition::charged_by, and the permits that the request itself
  // named for this limit and key.
  uint16_t charged_by = 0;
  uint64_t own = 0;
};

struct Receipt {
  enum class Kind : uint8_t {
    kAcquisition = 0,
    kEstimate,  // with settle_within
    kSlots,     // with slots, without settle_within
  };

  uint64_t id = 0;
  int64_t grant_time_ns = 0;
  Kind kind = Kind::kAcquisition;
  std::vector<ReceiptCharge> charges;  // views into the opened bytes
  // Of the acquisition: Refund says under it that its grant is not to be repeated any more.
  std::optional<store::RequestId> request_id;
};

inline constexpr size_t kReceiptKeyBytes = 32;
inline constexpr size_t kReceiptMacBytes = 16;
using ReceiptKey = std::array<uint8_t, kReceiptKeyBytes>;
using ReceiptMac = std::array<uint8_t, kReceiptMacBytes>;

// Thread-safe. Append and Open take no lock.
class ReceiptSigner {
 public:
  // With a key and an instance from the system's random source. Aborts if there is none.
  ReceiptSigner();
  // For tests.
  ReceiptSigner(uint64_t instance, const ReceiptKey& key);

  // The newest key, in hex. A secret: not for logs.
  std::string Key() const;
  // Signs with this key from now on, and still opens receipts of the last few keys.
  // INVALID_ARGUMENT: not a key; the message does not show it.
  absl::Status UseKey(std::string_view hex);

  // Appends a receipt to `out`. `charged_by`: as store::Acquisition's; kept if Settle takes it.
  // `once`: of the acquisition; null: it has no request id.
  void Append(uint64_t id, int64_t grant_time_ns, absl::Span<const store::Charge> charges,
              std::string* out, Receipt::Kind kind = Receipt::Kind::kAcquisition,
              const uint16_t* charged_by = nullptr, const store::Once* once = nullptr) const;

  // INVALID_ARGUMENT: not issued by this signer.
  absl::Status Open(std::string_view bytes, Receipt* receipt) const;

 private:
  // Open tries the newest key and those before it.
  static constexpr int kKeysTried = 4;
  struct Secret {
    ReceiptKey bytes;
    uint64_t serial;  // distinguishes it from all others of the process
    const Secret* before;
  };

  static ReceiptMac Mac(const Secret& secret, std::string_view bytes);
  void Add(const ReceiptKey& key);

  uint64_t instance_;
  common::Mutex mu_;
  // All keys ever used, so that Open needs no lock; changes are rare.
  std::vector<std::unique_ptr<const Secret>> secrets_ ABSL_GUARDED_BY(mu_);
  // Released once filled in.
  std::atomic<const Secret*> newest_{nullptr};
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_RECEIPT_H_
