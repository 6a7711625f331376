// Link: the messages between two processes of which one takes over from the other.
//
//   the new process (Taker)                     the old one (Giver)
//   Hello: formats, kind of store
//                                               Sockets: of a port, with descriptors; for each
//                                               Offer: all were sent; or Refused: why not
//   HandOver: prepared; end your calls
//                                               State: with its descriptor; I decide nothing more
//   Loaded
//                                               Yours: go on; or TakenBack: I go on
//
// With the buckets in Redis there is no state: Loaded follows Offer, and both may decide at once.
//
// A message is a packet: "SLUICETO", the version, the kind, its fields (server/state/fields.h). Of
// a Unix socket of sequenced packets, so that messages and their descriptors stay together.
#ifndef SLUICE_SERVER_TAKEOVER_LINK_H_
#define SLUICE_SERVER_TAKEOVER_LINK_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/descriptor.h"

namespace sluice::takeover {

// The version of the messages. A process refuses to take over from one of another version.
inline constexpr uint32_t kVersion = 1;

enum class Kind : uint8_t {
  kHello = 1,
  kRefused,
  kSockets,
  kOffer,
  kHandOver,
  kState,
  kLoaded,
  kYours,
  kTakenBack,
};

struct Message {
  Kind kind = Kind::kHello;
  std::string fields;
  std::vector<net::Descriptor> descriptors;
};

// Not thread-safe. Blocks.
class Link {
 public:
  // Takes over a connected socket.
  explicit Link(net::Descriptor socket);

  // Whether the other process may be trusted with all that this one has: it runs as the same user,
  // or as root. PERMISSION_DENIED.
  absl::Status CheckPeer() const;

  // UNAVAILABLE: the other process has ended, or has closed the link. Other codes of the system.
  absl::Status Send(Kind kind, std::string_view fields = {},
                    const std::vector<net::Descriptor>& descriptors = {}) {
    return SendAs(kVersion, kind, fields, descriptors);
  }
  // The same in another version (tests).
  absl::Status SendAs(uint32_t version, Kind kind, std::string_view fields,
                      const std::vector<net::Descriptor>& descriptors);

  // Waits for a message, at most so long.
  //   UNAVAILABLE: the other process has ended, or has closed the link, after all its messages were
  //   read; DEADLINE_EXCEEDED; FAILED_PRECONDITION: of another version; INVALID_ARGUMENT: damaged.
  absl::StatusOr<Message> Receive(std::chrono::milliseconds limit);
  // The same; INVALID_ARGUMENT if it is of another kind, or not empty.
  absl::Status ReceiveOnly(Kind kind, std::chrono::milliseconds limit);

  int fd() const { return socket_.get(); }

 private:
  net::Descriptor socket_;
};

}  // namespace sluice::takeover

#endif  // SLUICE_SERVER_TAKEOVER_LINK_H_
