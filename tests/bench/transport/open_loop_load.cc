// open_loop_load: sends unary gRPC calls at a fixed rate, whether or not earlier ones were
// answered.
//
//   open_loop_load --port=N --path=/sluice.v1.RateLimiter/Acquire --body=FILE [--rate=N]
//       [--connections=8] [--in_flight=32] [--seconds=2] [--warm_up=0.3] [--probe_ms=0]
//       [--random_digits=0] [--headers=fixed]
//
// A call's latency counts from the moment at which it was due, so the time that it waits in this
// program counts too (no coordinated omission). --rate=0 sends as fast as --in_flight allows, which
// measures the server's capacity. --probe_ms checks the server's health at that interval on its own
// connection. --random_digits=N overwrites the last N bytes of each body with random digits, for
// random keys.
//
// --headers=fixed: the same in all calls, in HPACK's table. timeout: beside them a grpc-timeout
// that differs in each call and enters the table, as gRPC's libraries send a propagated deadline.
// haproxy: as HAProxy 2.6 forwards such a call: nothing is looked up in the table, and most fields
// enter it again.
//
// The program sends frames that it has made in advance and reads only frame headers, so one core
// can send several times the load that a server on another core can serve. An answer with DATA
// counts as ok, an answer with only trailers as refused. It requires servers that allow the default
// HPACK table. It prints one line of JSON, and ignores the server's bounds on connections and
// streams.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "open_loop_load: %s\n", why.c_str());
  std::exit(1);
}

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Frame types and flags of RFC 9113.
constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kGoAway = 7,
                  kWindowUpdate = 8;
constexpr uint8_t kEndStream = 1, kAck = 1, kEndHeaders = 4;

std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  const auto size = static_cast<uint32_t>(payload.size());
  std::string frame = {static_cast<char>(size >> 16),   static_cast<char>(size >> 8),
                       static_cast<char>(size),         static_cast<char>(type),
                       static_cast<char>(flags),        static_cast<char>(stream >> 24),
                       static_cast<char>(stream >> 16), static_cast<char>(stream >> 8),
                       static_cast<char>(stream)};
  return frame.append(payload);
}

std::string Big32(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

uint32_t Read32(const uint8_t* at) {
  return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3];
}

void Append(std::string* to, std::string_view what) { to->append(what); }

// A header's text, of fewer than 127 bytes, in HPACK without Huffman codes.
std::string Text(std::string_view text) {
  std::string coded(1, static_cast<char>(text.size()));
  Append(&coded, text);
  return coded;
}

// An HPACK integer whose first byte has `flags` and room for `bits` bits.
std::string Integer(uint8_t flags, int bits, size_t value) {
  const size_t most = (size_t{1} << bits) - 1;
  if (value < most) return {static_cast<char>(flags | value)};
  std::string coded(1, static_cast<char>(flags | most));
  for (value -= most; value >= 128; value /= 128) {
    coded.push_back(static_cast<char>(value % 128 + 128));
  }
  coded.push_back(static_cast<char>(value));
  return coded;
}

// Makes the headers of calls whose grpc-timeout differs.
class ChangingHeaders {
 public:
  ChangingHeaders(std::string_view path, bool like_haproxy)
      : path_(path), like_haproxy_(like_haproxy) {}

  std::string Next() {
    timeout_us_ = 1'000'000 + (timeout_us_ + 314'159) % 8'999'999;
    const std::string timeout = std::to_string(timeout_us_) + "u";
    std::string block = "\x83\x86";
    if (like_haproxy_) {
      block += "\x41" + Text("localhost") + "\x44" + Text(path_);
      block += "\x5f" + Text("application/grpc") + "\x7a" + Text("grpc-go/1.75.0");
      block += std::string(1, '\0') + Text("te") + Text("trailers");
      return block + std::string(1, '\0') + Text("grpc-timeout") + Text(timeout);
    }
    Add(&block, 4, ":path", path_);
    Add(&block, 1, ":authority", "localhost");
    Add(&block, 31, "content-type", "application/grpc");
    Add(&block, 58, "user-agent", "grpc-go/1.75.0");
    Add(&block, 0, "te", "trailers");
    Add(&block, 0, "grpc-timeout", timeout);
    return block;
  }

 private:
  static constexpr size_t kStaticEntries = 61;
  static constexpr size_t kTableBytes = 4096;
  using Field = std::pair<std::string, std::string>;

  // `static_name`: the index of the name in the static table, or 0.
  void Add(std::string* block, size_t static_name, std::string_view name, std::string_view value) {
    size_t name_index = static_name;
    for (size_t i = 0; i < table_.size(); ++i) {
      if (table_[i].first != name) continue;
      if (table_[i].second == value) return Append(block, Integer(0x80, 7, kStaticEntries + 1 + i));
      if (name_index == 0) name_index = kStaticEntries + 1 + i;
    }
    Append(block, Integer(0x40, 6, name_index));
    if (name_index == 0) Append(block, Text(name));
    Append(block, Text(value));
    table_.emplace_front(name, value);
    for (table_bytes_ += Size(table_.front()); table_bytes_ > kTableBytes; table_.pop_back()) {
      table_bytes_ -= Size(table_.back());
    }
  }
  static size_t Size(const Field& field) { return field.first.size() + field.second.size() + 32; }

  const std::string path_;
  const bool like_haproxy_;
  uint32_t timeout_us_ = 0;
  std::deque<Field> table_;  // HPACK's, the newest first
  size_t table_bytes_ = 0;
};

// The counts of one run, of calls that were due within the measurement window.
struct Totals {
  uint64_t ok = 0;
  uint64_t refused = 0;
  uint64_t ok_ever = 0;        // also before and after the window
  uint64_t ok_by_arrival = 0;  // answers that arrived within the window
  std::vector<int64_t> latencies_ns;
  int64_t from_ns = 0;
  int64_t until_ns = 0;
};

class Connection {
 public:
  // `headers`: null: fixed ones.
  Connection(int port, std::string_view path, std::string_view body, uint32_t in_flight,
             size_t random_digits, std::unique_ptr<ChangingHeaders> headers, Totals* totals)
      : in_flight_(in_flight),
        random_digits_(random_digits),
        headers_(std::move(headers)),
        totals_(totals),
        body_bytes_(static_cast<int64_t>(body.size())) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      Die(std::string("connect: ") + std::strerror(errno));
    }
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    fcntl(fd_, F_SETFL, O_NONBLOCK);
    // The first request adds its headers to the dynamic table; later ones refer to them.
    std::string first = "\x83\x86";
    first += "\x44" + Text(path) + "\x41" + Text("localhost");
    first += "\x5f" + Text("application/grpc") + "\x40" + Text("te") + Text("trailers");
    const std::string data = Frame(kData, kEndStream, 0, body);
    first_ = Frame(kHeaders, kEndHeaders, 0, first);
    first_ += data;
    later_ = Frame(kHeaders, kEndHeaders, 0, "\x83\x86\xc1\xc0\xbf\xbe");
    later_ += data;
    output_ = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    // INITIAL_WINDOW_SIZE and the connection's window: flow control never delays answers.
    output_ += Frame(kSettings, 0, 0, std::string("\0\x04", 2) + Big32(0x7fffffff));
    output_ += Frame(kWindowUpdate, 0, 0, Big32(0x7fffffff - 65535));
    input_.resize(256 << 10);
  }
  ~Connection() { close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int fd() const { return fd_; }
  uint32_t open() const { return open_; }
  bool HasOutput() const { return !output_.empty(); }
  bool HasRoom() const {
    return open_ < in_flight_ && window_ >= body_bytes_ && next_stream_ < 0x7ffffff0u &&
           output_.size() < (size_t{1} << 20);
  }

  void Call(int64_t intended_ns) {
    std::string& request = next_stream_ == 1 ? first_ : later_;
    if (headers_ != nullptr) {
      request.replace(0, request.size() - kFrameHead - static_cast<size_t>(body_bytes_),
                      Frame(kHeaders, kEndHeaders, 0, headers_->Next()));
    }
    const size_t headers = request.size() - kFrameHead - static_cast<size_t>(body_bytes_);
    PutStream(&request, 0);
    PutStream(&request, headers);
    for (size_t i = 1; i <= random_digits_; ++i) {
      request[request.size() - i] = static_cast<char>('0' + random_() % 10);
    }
    output_ += request;
    sent_ns_.push_back(intended_ns);
    has_data_.push_back(false);
    next_stream_ += 2;
    ++open_;
    window_ -= body_bytes_;
  }

  void Write() {
    if (output_.empty()) return;
    const ssize_t n = send(fd_, output_.data(), output_.size(), MSG_NOSIGNAL);
    if (n > 0) output_.erase(0, static_cast<size_t>(n));
    if (n < 0 && errno != EAGAIN) Die(std::string("send: ") + std::strerror(errno));
  }

  void Read() {
    const ssize_t n = recv(fd_, input_.data() + have_, input_.size() - have_, 0);
    if (n == 0) Die("the server closed a connection");
    if (n < 0) {
      if (errno == EAGAIN) return;
      Die(std::string("recv: ") + std::strerror(errno));
    }
    have_ += static_cast<size_t>(n);
    const int64_t now_ns = NowNs();
    size_t at = 0;
    while (have_ - at >= 9) {
      const uint8_t* frame = input_.data() + at;
      const size_t size = size_t{frame[0]} << 16 | size_t{frame[1]} << 8 | frame[2];
      if (have_ - at < 9 + size) break;
      Take(frame[3], frame[4], Read32(frame + 5) & 0x7fffffff, frame + 9, size, now_ns);
      at += 9 + size;
    }
    std::memmove(input_.data(), input_.data() + at, have_ - at);
    have_ -= at;
    if (unacknowledged_ > (1 << 24)) {
      output_ += Frame(kWindowUpdate, 0, 0, Big32(static_cast<uint32_t>(unacknowledged_)));
      unacknowledged_ = 0;
    }
  }

 private:
  static constexpr size_t kFrameHead = 9;

  void PutStream(std::string* request, size_t frame) const {
    const std::string stream = Big32(next_stream_);
    request->replace(frame + 5, 4, stream);
  }

  void Take(uint8_t type, uint8_t flags, uint32_t stream, const uint8_t* payload, size_t size,
            int64_t now_ns) {
    switch (type) {
      case kData:
        unacknowledged_ += static_cast<int64_t>(size);
        has_data_[stream / 2] = true;
        [[fallthrough]];
      case kHeaders:
        if ((flags & kEndStream) != 0) Done(stream / 2, now_ns);
        return;
      case kReset:
        // NO_ERROR follows an early answer. Any other code would be missing from the totals.
        if (Read32(payload) != 0) Die("RST_STREAM: " + std::to_string(Read32(payload)));
        return;
      case kSettings:
        if ((flags & kAck) == 0) output_ += Frame(kSettings, kAck, 0, "");
        return;
      case kPing:
        if ((flags & kAck) == 0) {
          output_ += Frame(kPing, kAck, 0, {reinterpret_cast<const char*>(payload), size});
        }
        return;
      case kWindowUpdate:
        if (stream == 0) window_ += Read32(payload);
        return;
      case kGoAway:
        Die("GOAWAY: " + std::string(reinterpret_cast<const char*>(payload) + 8, size - 8));
      default:
        return;
    }
  }

  void Done(size_t call, int64_t now_ns) {
    --open_;
    const int64_t intended_ns = sent_ns_[call];
    if (has_data_[call]) ++totals_->ok_ever;
    if (has_data_[call] && now_ns >= totals_->from_ns && now_ns < totals_->until_ns) {
      ++totals_->ok_by_arrival;
    }
    if (intended_ns < totals_->from_ns || intended_ns >= totals_->until_ns) return;
    if (!has_data_[call]) {
      ++totals_->refused;
      return;
    }
    ++totals_->ok;
    totals_->latencies_ns.push_back(now_ns - intended_ns);
  }

  int fd_;
  const uint32_t in_flight_;
  const size_t random_digits_;
  const std::unique_ptr<ChangingHeaders> headers_;
  std::minstd_rand random_{std::random_device{}()};
  Totals* const totals_;
  const int64_t body_bytes_;
  std::string first_, later_, output_;
  std::vector<uint8_t> input_;
  size_t have_ = 0;
  uint32_t next_stream_ = 1;
  uint32_t open_ = 0;
  int64_t window_ = 65535;
  int64_t unacknowledged_ = 0;
  // By call, in the order of sending.
  std::vector<int64_t> sent_ns_;
  std::vector<bool> has_data_;
};

// Waits until a connection can be read, or can be written if it has unsent bytes; at most 1 ms.
void Await(const std::vector<std::unique_ptr<Connection>>& connections) {
  std::vector<pollfd> each;
  for (const auto& connection : connections) {
    const short events = connection->HasOutput() ? POLLIN | POLLOUT : POLLIN;
    each.push_back({connection->fd(), events, 0});
  }
  poll(each.data(), each.size(), 1);
}

double At(const std::vector<int64_t>& sorted, double share) {
  if (sorted.empty()) return 0;
  const auto i = static_cast<size_t>(share * static_cast<double>(sorted.size()));
  return static_cast<double>(sorted[std::min(i, sorted.size() - 1)]) / 1000;
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags = {
      {"port", ""},         {"path", ""},           {"body", ""},        {"rate", "0"},
      {"connections", "8"}, {"in_flight", "32"},    {"seconds", "2"},    {"warm_up", "0.3"},
      {"probe_ms", "0"},    {"random_digits", "0"}, {"headers", "fixed"}};
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const size_t equals = flag.find('=');
    if (flag.substr(0, 2) != "--" || equals == std::string_view::npos ||
        flags.count(std::string(flag.substr(2, equals - 2))) == 0) {
      Die("unknown flag " + std::string(flag) + "; flags are written --name=value");
    }
    flags[std::string(flag.substr(2, equals - 2))] = flag.substr(equals + 1);
  }
  const auto number = [&flags](const char* name) { return std::atof(flags[name].c_str()); };
  std::ifstream file(flags["body"], std::ios::binary);
  if (!file) Die("--body: cannot read " + flags["body"]);
  const std::string body{std::istreambuf_iterator<char>(file), {}};
  const int port = static_cast<int>(number("port"));
  const auto random_digits = static_cast<size_t>(number("random_digits"));
  if (random_digits > body.size()) Die("--random_digits: the body has fewer bytes");
  const double rate = number("rate");

  const std::string headers = flags["headers"];
  if (headers != "fixed" && headers != "timeout" && headers != "haproxy") {
    Die("--headers: " + headers + " is not fixed, timeout or haproxy");
  }
  const auto changing_headers = [&]() -> std::unique_ptr<ChangingHeaders> {
    if (headers == "fixed") return nullptr;
    return std::make_unique<ChangingHeaders>(flags["path"], headers == "haproxy");
  };

  Totals totals, probes;
  probes.until_ns = INT64_MAX;
  std::vector<std::unique_ptr<Connection>> connections;
  for (int i = 0; i < static_cast<int>(number("connections")); ++i) {
    connections.push_back(std::make_unique<Connection>(port, flags["path"], body,
                                                       static_cast<uint32_t>(number("in_flight")),
                                                       random_digits, changing_headers(), &totals));
  }
  const auto probe_ns = static_cast<int64_t>(number("probe_ms") * 1e6);
  std::unique_ptr<Connection> prober;
  if (probe_ns > 0) {
    prober =
        std::make_unique<Connection>(port, "/grpc.health.v1.Health/Check",
                                     std::string_view("\0\0\0\0\0", 5), 1000, 0, nullptr, &probes);
  }

  const int64_t start_ns = NowNs();
  totals.from_ns = start_ns + static_cast<int64_t>(number("warm_up") * 1e9);
  totals.until_ns = totals.from_ns + static_cast<int64_t>(number("seconds") * 1e9);
  uint64_t planned = 0, planned_before = 0, probes_sent = 0;
  size_t turn = 0;
  int64_t end_ns = totals.until_ns;
  bool open = true;
  // After the window, waits one second for answers, so that slow ones count.
  while (open) {
    const int64_t now_ns = NowNs();
    const bool sending = now_ns < totals.until_ns;
    if (!sending) {
      open =
          now_ns < end_ns + 1'000'000'000 && std::any_of(
                                                 connections.begin(), connections.end(),
                                                 [](const auto& one) { return one->open() > 0; });
    }
    const uint64_t due =
        !sending   ? planned
        : rate > 0 ? static_cast<uint64_t>(static_cast<double>(now_ns - start_ns) * 1e-9 * rate) + 1
                   : UINT64_MAX;
    // A bounded number at a time, so that answers are read too.
    size_t full = 0;
    for (int i = 0; i < 4096 && planned < due && full < connections.size(); ++i) {
      Connection& connection = *connections[turn++ % connections.size()];
      if (!connection.HasRoom()) {
        ++full;
        continue;
      }
      full = 0;
      connection.Call(rate > 0 ? start_ns +
                                     static_cast<int64_t>(static_cast<double>(planned) / rate * 1e9)
                               : now_ns);
      if (now_ns < totals.from_ns) ++planned_before;
      ++planned;
    }
    if (prober != nullptr && sending &&
        static_cast<int64_t>(probes_sent) * probe_ns <= now_ns - start_ns) {
      prober->Call(now_ns);
      ++probes_sent;
    }
    for (const auto& connection : connections) {
      connection->Write();
      if (connection->open() > 0) connection->Read();
    }
    if (prober != nullptr) {
      prober->Write();
      prober->Read();
    }
    // Nothing to do until an answer arrives: leaves the core to the server.
    if (rate == 0 && prober == nullptr) Await(connections);
  }
  uint64_t unanswered = 0;
  for (const auto& connection : connections) unanswered += connection->open();
  std::sort(totals.latencies_ns.begin(), totals.latencies_ns.end());
  std::sort(probes.latencies_ns.begin(), probes.latencies_ns.end());
  const double seconds = number("seconds");
  std::printf(
      "{\"ok\": %llu, \"sent_per_s\": %.0f, \"ok_per_s\": %.0f, \"refused_per_s\": %.0f, "
      "\"unanswered\": %llu, "
      "\"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"probes\": %llu, "
      "\"probes_answered\": %zu, \"probe_p50_us\": %.0f, \"probe_max_us\": %.0f}\n",
      static_cast<unsigned long long>(totals.ok_ever),
      static_cast<double>(planned - planned_before) / seconds,
      static_cast<double>(totals.ok_by_arrival) / seconds,
      static_cast<double>(totals.refused) / seconds, static_cast<unsigned long long>(unanswered),
      At(totals.latencies_ns, .5), At(totals.latencies_ns, .99), At(totals.latencies_ns, .999),
      static_cast<unsigned long long>(probes_sent), probes.latencies_ns.size(),
      At(probes.latencies_ns, .5), At(probes.latencies_ns, 1));
  return 0;
}
