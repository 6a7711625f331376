// Fuzzes a whole server in process, without sockets and on virtual time, with random steps of
// attacks on a few connections: batches, streams, watches, held calls, receipts, slots, request
// ids, reflection, metadata, resets, floods, peers that do not read. Each step is two bytes of the
// input: what to do, and how much. An input plays as many steps as kMostWork allows.
//
// After every step the server may hold only so many bytes, by its own account and by the allocator
// of the sanitizer. No iteration of its loop may take long. After the connections are gone, the
// bytes are back.
#include <fcntl.h>
#include <sanitizer/allocator_interface.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/memory_account.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "server/limits/limit_registry.h"
#include "server/service/bucket_watch.h"
#include "server/service/key_usage.h"
#include "server/service/rate_limiter.h"
#include "server/service/receipt.h"
#include "server/service/registry_rules.h"
#include "server/store/memory/memory_store.h"
#include "server/transport/services/rate_limiter_service.h"
#include "server/transport/services/reflection_service.h"
#include "server/waiting/held_callers.h"
#include "sluice/v1/rate_limiter.pb.h"
#include "tests/support/h2_peer.h"

namespace sluice {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
// The server's account: its limit, by how much a message that was begun may exceed it, and what
// its threads have not reported.
constexpr int64_t kMemoryLimit = int64_t{16} << 20;
constexpr int64_t kExcess = int64_t{8} << 20;
constexpr int64_t kUnreported = 2 * common::MemoryPart::kChunk;
// By the allocator, with buckets and bookings: while the connections are open, and left behind.
constexpr size_t kMostBytes = size_t{48} << 20;
constexpr size_t kMostBytesLeft = size_t{8} << 20;
// CPU time of an iteration of the loop. A step takes at most 1 ms; each connection may take one,
// and the sanitizers multiply that.
constexpr int64_t kMostIterationNs = 200'000'000;
// Work of an input, in charges, so that no input takes long: a batch has up to 65,536, and with the
// sanitizers each takes microseconds. A step costs some beside its charges.
constexpr int64_t kMostWork = 250'000;
constexpr int64_t kStepWork = 1'000;

void Require(bool right, const char* what, size_t number = 0) {
  if (right) return;
  std::fprintf(stderr, "attack_steps: %s: %zu\n", what, number);
  __builtin_trap();
}

int64_t CpuNs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * kSecondNs + now.tv_nsec;
}

// An iteration of the loop, or what it does for the input of one connection.
template <typename F>
void Timed(F iteration) {
  const int64_t start = CpuNs();
  iteration();
  const int64_t took = CpuNs() - start;
  Require(took < kMostIterationNs, "an iteration took this many ns", static_cast<size_t>(took));
}

// ---- The client's bytes ----

std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame.push_back(static_cast<char>(payload.size() >> shift));
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  for (const int shift : {24, 16, 8, 0}) frame.push_back(static_cast<char>(stream >> shift));
  frame.append(payload);
  return frame;
}
constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kReset = 3;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kPing = 6;
constexpr uint8_t kWindowUpdate = 8;
constexpr uint8_t kContinuation = 9;
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kEndHeaders = 4;

std::string Number(uint32_t number) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<char>(number >> shift));
  return bytes;
}

// An HPACK literal, not indexed unless `insert`.
std::string Literal(std::string_view name, std::string_view value, bool insert = false) {
  std::string field(1, insert ? '\x40' : '\0');
  for (const std::string_view text : {name, value}) {
    if (text.size() < 127) {
      field.push_back(static_cast<char>(text.size()));
    } else {
      field.push_back(127);
      size_t rest = text.size() - 127;
      for (; rest >= 128; rest >>= 7) field.push_back(static_cast<char>(rest % 128 + 128));
      field.push_back(static_cast<char>(rest));
    }
    field.append(text);
  }
  return field;
}

std::string RequestHeaders(std::string_view method, bool gzip) {
  std::string block = "\x83\x86";  // ":method: POST", ":scheme: http"
  block +=
      Literal(":path", method.front() == '/' ? std::string(method)
                                             : "/sluice.v1.RateLimiter/" + std::string(method));
  block += Literal(":authority", "a") + Literal("te", "trailers");
  block += Literal("content-type", "application/grpc");
  if (gzip) block += Literal("grpc-encoding", "gzip");
  return block;
}

std::string Gzipped(const std::string& bytes) {
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// ---- The server ----

struct NoAlarm final : waiting::Alarm {
  void SetAt(int64_t) override {}
};

struct Parts {
  common::MemoryBudget memory{kMemoryLimit};
  testing::H2Server server{Options(&memory)};
  store::MemoryStore store{server.clock, {.max_buckets = 4096, .seed = 1}};
  limits::LimitRegistry registry{&store};
  service::KeyUsage usage;
  service::ReceiptSigner signer{7, {}};
  service::RateLimiter limiter{registry, store, server.clock, server.metrics, usage, signer};
  service::RegistryRules rules{registry};
  NoAlarm alarm;
  waiting::HeldCallers held{store, server.clock, rules, alarm};
  service::WatchHub watches{limiter};
  transport::RateLimiterService service{limiter, watches, 1};
  transport::ReflectionService reflection{{"sluice.v1.RateLimiter"}};

  static transport::RpcServerOptions Options(common::MemoryBudget* memory) {
    transport::RpcServerOptions options;
    options.memory = memory;
    return options;
  }

  Parts() {
    constexpr algorithm::Kind kKinds[] = {
        algorithm::Kind::kTokenBucket, algorithm::Kind::kSlidingLog,
        algorithm::Kind::kSlidingWindow, algorithm::Kind::kFixedWindow};
    std::vector<limits::LimitSpec> specs(5);
    for (size_t i = 0; i < 4; ++i) {
      specs[i].name = std::string(1, static_cast<char>('a' + i));
      specs[i].rate = {1000, 10 * kSecondNs};
      specs[i].algorithm = kKinds[i];
    }
    specs[4].name = "slots";
    specs[4].algorithm = algorithm::Kind::kConcurrency;
    specs[4].permits = 100'000;
    specs[4].hold_for_ns = 5 * kSecondNs;
    Require(registry.ApplyFile(std::move(specs), "1").ok(), "limits");
    limiter.UseHeldCallers(&held);
    service.Register(&server.methods);
    reflection.Register(&server.methods);
    server.Start();
  }
  void Advance(int64_t by_ns) {
    server.clock.Advance(by_ns);
    held.Advance();
    watches.Tick();
    server.server.RelieveMemory();
    Iterate();
  }
  // All iterations that the work at hand takes.
  void Iterate() {
    do {
      Timed([this] { server.loop->RunOnce(0); });
    } while (!server.loop->work().empty());
  }
};

// ---- The attackers ----

struct Attacker {
  explicit Attacker(Parts& parts, bool takes_answers) : connection(parts.server), parts_(parts) {
    Feed("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" +
         Frame(kSettings, 0, 0, std::string(takes_answers ? "\0\4\1\0\0\0" : "\0\4\0\0\0\0", 6)));
  }
  void Feed(std::string_view bytes) {
    Timed([&] { connection.FeedOnce(bytes); });
    parts_.Iterate();
  }
  uint32_t Open(std::string_view method, bool gzip, std::string_view more = "") {
    const std::string block = RequestHeaders(method, gzip) + std::string(more);
    next_stream += 2;
    constexpr size_t kPart = 16384;
    std::string bytes;
    for (size_t at = 0; at < block.size(); at += kPart) {
      const bool last = at + kPart >= block.size();
      bytes += Frame(at == 0 ? kHeaders : kContinuation, last ? kEndHeaders : 0, next_stream,
                     std::string_view(block).substr(at, kPart));
    }
    Feed(bytes);
    return next_stream;
  }
  void Send(uint32_t stream, const google::protobuf::MessageLite& message, bool gzip, bool end) {
    const std::string body = message.SerializeAsString();
    const std::string framed = testing::Framed(gzip ? Gzipped(body) : body, gzip);
    constexpr size_t kFrame = 16384;
    std::string_view rest = std::string_view(framed).substr(0, 60000);  // the first window
    for (; !rest.empty(); rest.remove_prefix(std::min(kFrame, rest.size()))) {
      const bool last = end && rest.size() <= kFrame;
      Feed(Frame(kData, last ? kEndStream : 0, stream, rest.substr(0, kFrame)));
    }
  }
  void Call(std::string_view method, const google::protobuf::MessageLite& message, bool gzip) {
    Send(Open(method, gzip), message, gzip, true);
  }

  testing::H2Connection connection;
  uint32_t next_stream = static_cast<uint32_t>(-1);
  uint32_t acquire_stream = 0;  // 0: none

 private:
  Parts& parts_;
};

// What `amount` says of a request: 4 bits the charges, 1 bit long keys, 3 bits the acquisitions.
std::string Key(uint8_t amount, size_t number) {
  return std::string((amount & 16) != 0 ? 500 : 2, static_cast<char>('a' + number % 26));
}

void Fill(v1::AcquireRequest* request, uint8_t what, uint8_t amount) {
  for (int i = 0; i <= amount % 16; ++i) {
    v1::Charge* charge = request->add_charges();
    charge->set_limit(std::string(1, static_cast<char>('a' + (what / 16 + i) % 4)));
    charge->set_key(Key(amount, static_cast<size_t>(i)));
  }
  if ((what & 16) != 0) request->mutable_max_wait()->set_seconds(int64_t{1} << amount % 12);
  request->set_want_receipt((what & 32) != 0);
}

int AcquisitionsOf(uint8_t amount) {
  constexpr int kCounts[] = {1, 2, 8, 64, 256, 1024, 2048, 4096};
  return kCounts[amount / 32];
}

v1::AcquireBatchRequest Batch(uint8_t what, uint8_t amount) {
  v1::AcquireBatchRequest batch;
  for (int i = 0; i < AcquisitionsOf(amount); ++i) Fill(batch.add_acquisitions(), what, amount);
  return batch;
}

// What a step of receipts, slots and so on does.
enum class Rare : uint8_t { kNewStream, kReceipts, kIds, kReflection };
constexpr uint8_t kRareStep = 3;
Rare RareOf(uint8_t what) { return static_cast<Rare>(what / 16 % 4); }

int64_t WorkOf(uint8_t what, uint8_t amount) {
  if (what % 16 < kRareStep) return int64_t{AcquisitionsOf(amount)} * (amount % 16 + 1);
  if (what % 16 > kRareStep) return 0;
  return RareOf(what) == Rare::kReceipts || RareOf(what) == Rare::kIds
             ? int64_t{16} * AcquisitionsOf(amount)
             : 0;
}

class World {
 public:
  // Returns false, and does nothing, once the work is done.
  bool Step(uint8_t what, uint8_t amount) {
    if (work_left_ <= 0) return false;
    work_left_ -= kStepWork;
    work_left_ -= WorkOf(what, amount);
    Do(what, amount);
    return true;
  }
  ~World() {
    for (auto& attacker : attackers_) attacker.reset();
    parts_.Advance(11 * kSecondNs);
    Require(parts_.server.server.connections() == 0, "connections left");
    Require(parts_.watches.watches() == 0, "watches left", parts_.watches.watches());
    Require(parts_.memory.held() < kUnreported, "bytes left in the account", Held());
    Require(Bytes() < kMostBytesLeft, "bytes left", Bytes());
  }

 private:
  void Do(uint8_t what, uint8_t amount) {
    const size_t index = what >> 6;
    std::unique_ptr<Attacker>& slot = attackers_[index];
    if (slot == nullptr || slot->connection.ended()) {
      slot.reset();
      slot = std::make_unique<Attacker>(parts_, amount % 2 == 0);
      return;
    }
    Play(*slot, what, amount);
    if (slot != nullptr && !slot->connection.stream.stalled) slot->connection.Take();
    Require(parts_.memory.held() < kMemoryLimit + kExcess, "bytes in the account", Held());
    Require(Bytes() < kMostBytes, "bytes in use", Bytes());
  }

  size_t Held() const { return static_cast<size_t>(parts_.memory.held()); }
  // Of the server. The fake streams hold what a socket would.
  size_t Bytes() const {
    size_t streams = 0;
    for (const auto& attacker : attackers_) {
      if (attacker != nullptr) streams += attacker->connection.stream.output.capacity();
    }
    const size_t now = __sanitizer_get_current_allocated_bytes();
    return now > at_start_ + streams ? now - at_start_ - streams : 0;
  }

  void Play(Attacker& attacker, uint8_t what, uint8_t amount) {
    testing::H2Connection& connection = attacker.connection;
    switch (what % 16) {
      case 0:
        return attacker.Call("AcquireBatch", Batch(what, amount), true);
      case 1:
      case 2:
        if (attacker.acquire_stream == 0) {
          attacker.acquire_stream = attacker.Open("AcquireStream", true);
        }
        return attacker.Send(attacker.acquire_stream, Batch(what, amount), true, false);
      case kRareStep:
        return PlayRare(attacker, what, amount);
      case 4: {
        v1::WatchRequest watch;
        for (int i = 0; i <= amount; ++i) {
          auto* bucket = watch.add_buckets();
          bucket->set_limit("a");
          bucket->set_key(Key(amount, static_cast<size_t>(i)));
        }
        watch.mutable_min_interval()->set_nanos(10'000'000 + amount);
        return attacker.Call("Watch", watch, true);
      }
      case 5: {
        v1::QueryRequest query;
        for (int i = 0; i <= amount; ++i) {
          auto* bucket = query.add_buckets();
          bucket->set_limit("b");
          bucket->set_key(Key(amount, static_cast<size_t>(i)));
        }
        return attacker.Call("Query", query, (what & 16) != 0);
      }
      case 6: {
        v1::AcquireRequest request;
        Fill(&request, what | 16, amount);
        request.set_hold(true);
        return attacker.Call("Acquire", request, false);
      }
      case 7:  // an entry of HPACK's table, and many references to it
        attacker.Open(
            "AcquireStream", false,
            Literal("x", std::string(amount * 15u, 'v'), true) + std::string(amount % 5, '\xbe'));
        return;
      case 8: {
        const uint32_t stream = attacker.next_stream - amount % 8 * 2;
        return attacker.Feed(Frame(kReset, 0, stream, Number(8)));
      }
      case 9:
        connection.stream.stalled = !connection.stream.stalled;
        if (!connection.stream.stalled) {
          connection.Take();
          connection.Writable();
          parts_.Iterate();
        }
        return;
      case 10:
        return parts_.Advance(int64_t{amount} * amount * 1'000'000);
      case 11: {
        std::string flood;
        for (int i = 0; i <= amount; ++i) {
          flood += (what & 16) != 0 ? Frame(kPing, 0, 0, "pingpong")
                                    : Frame(kSettings, 0, 0,
                                            std::string("\0\4\0\0\0", 5) + static_cast<char>(i));
        }
        return attacker.Feed(flood);
      }
      case 12:
        return attacker.Feed(Frame(kWindowUpdate, 0, amount % 2 == 0 ? 0 : attacker.next_stream,
                                   Number(1u << amount % 20)));
      case 13: {  // a message that never ends
        const uint32_t stream = attacker.Open("AcquireBatch", false);
        return attacker.Feed(Frame(
            kData, 0, stream, std::string("\0\0\x10\0\0", 5) + std::string(amount * 60u, 'x')));
      }
      case 14:
        return attacker.Feed(
            Frame(kHeaders, 0, attacker.next_stream += 2, RequestHeaders("Acquire", false)) +
            Frame(kContinuation, 0, attacker.next_stream, std::string(amount * 40u, '\x83')));
      default:
        attackers_[what >> 6].reset();
    }
  }

  void PlayRare(Attacker& attacker, uint8_t what, uint8_t amount) {
    switch (RareOf(what)) {
      case Rare::kNewStream:
        attacker.acquire_stream = 0;  // the old stream stays open
        return;
      case Rare::kReceipts:
        return PlayReceipts(attacker, amount);
      case Rare::kIds: {
        v1::AcquireBatchRequest batch = Batch(what, amount & 0xe0);
        for (v1::AcquireRequest& one : *batch.mutable_acquisitions()) {
          one.clear_max_wait();
          one.set_request_id("0123456789ab" +
                             Number(next_id_++ % (amount % 2 == 0 ? 64 : 1 << 30)));
        }
        return attacker.Call("AcquireBatch", batch, true);
      }
      case Rare::kReflection: {
        grpc::reflection::v1::ServerReflectionRequest request;
        std::string name(amount * 17u, '.');
        for (size_t i = 0; i < name.size(); i += 2)
          name[i] = static_cast<char>('a' + next_id_ % 26);
        ++next_id_;
        amount % 2 == 0 ? request.set_file_containing_symbol(name)
                        : request.set_file_by_filename(name);
        return attacker.Call("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", request,
                             true);
      }
    }
  }

  // Takes slots or estimates, and settles or renews them many times, with wrong ones among them.
  void PlayReceipts(Attacker& attacker, uint8_t amount) {
    const bool slots = amount % 2 == 0;
    service::AcquireCall call;
    call.Reset(service::AcquireCall::Form::kUnary);
    service::AcquisitionOptions options;
    if (!slots) options.settle_within = service::WireDuration{60, 0};
    call.BeginAcquisition(options);
    call.AddCharge(slots ? "slots" : "a", "k", 1);
    parts_.limiter.Acquire(&call, store::kNoDeadline, [](void*, service::AcquireCall*) {}, nullptr);
    const std::string receipt = std::string(call.result(0).receipt);
    v1::RenewRequest renew;
    v1::SettleBatchRequest settle;
    for (int i = 0; i < AcquisitionsOf(amount); ++i) {
      const std::string& of = i % 3 == 1 ? kWrongReceipt : receipt;
      if ((amount & 2) != 0) {
        renew.add_receipts(of);
        continue;
      }
      v1::SettleRequest* const one = settle.add_settlements();
      one->set_receipt(of);
      for (int a = 0; a < amount / 4 % 8; ++a) one->add_actual()->set_limit("a");
    }
    (amount & 2) != 0 ? attacker.Call("Renew", renew, true)
                      : attacker.Call("SettleBatch", settle, true);
  }

  static inline const std::string kWrongReceipt = std::string(100, 'w');

  int64_t work_left_ = kMostWork;
  uint32_t next_id_ = 0;
  const size_t at_start_ = __sanitizer_get_current_allocated_bytes();
  Parts parts_;
  std::array<std::unique_ptr<Attacker>, 4> attackers_;
};

}  // namespace
}  // namespace sluice

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::World world;
  for (size_t at = 0; at + 2 <= size && world.Step(data[at], data[at + 1]); at += 2) {
  }
  return 0;
}
