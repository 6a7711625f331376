// What a call costs its caller: CPU time of the client per call, and latency, beside a bare socket
// that sends prebuilt frames and beside grpc++'s client. All take turns in one process, so that a
// slow minute of the machine meets them alike; the medians of the rounds are printed.
//
//   client_cost ADDRESS [ROUNDS] [SECONDS]
//
// ADDRESS is HOST:PORT of a server with the limit { name: huge, rate: 100000000/s }.
#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "sluice/client.h"
#include "sluice/v1/rate_limiter.grpc.pb.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

int64_t ProcessCpuNs() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// ---- A bare socket

std::string Number(uint64_t value, int bytes) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}
std::string Frame(char type, char flags, uint32_t stream, const std::string& payload) {
  return Number(payload.size(), 3) + type + flags + Number(stream, 4) + payload;
}
// A field that enters the table.
std::string Indexed(const std::string& name, const std::string& value) {
  return std::string("\x40") + static_cast<char>(name.size()) + name +
         static_cast<char>(value.size()) + value;
}

class BareSocket {
 public:
  explicit BareSocket(const std::string& address) {
    const size_t colon = address.rfind(':');
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
    inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) {
      std::perror("connect");
      std::exit(1);
    }
    Write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(4, 0, 0, "") + Frame(4, 1, 0, "") +
          Frame(8, 0, 0, Number(1 << 30, 4)));
    const std::string fixed = "\x83\x86";  // POST, http
    const std::string body = std::string("\0\0\0\0\x0f\x0a\x0d\x0a\x04huge\x12\x05key-1", 20);
    first_ = Frame(1, 4, 1,
                   fixed + Indexed(":path", "/sluice.v1.RateLimiter/Acquire") +
                       Indexed(":authority", address) + Indexed("te", "trailers") +
                       Indexed("content-type", "application/grpc")) +
             Frame(0, 1, 1, body);
    request_ = Frame(1, 4, 1, fixed + "\xc1\xc0\xbf\xbe") + Frame(0, 1, 1, body);
    data_at_ = 9 + 6;
    Call();
  }
  ~BareSocket() { close(fd_); }

  void Call() {
    std::string& request = stream_ == 1 ? first_ : request_;
    const std::string id = Number(stream_, 4);
    const size_t data_at = stream_ == 1 ? request.size() - 29 : data_at_;
    request.replace(5, 4, id);
    request.replace(data_at + 5, 4, id);
    stream_ += 2;
    Write(request);
    ReadAnswer(stream_ - 2);
  }

 private:
  void Write(const std::string& bytes) {
    if (write(fd_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      std::perror("write");
      std::exit(1);
    }
  }
  void ReadAnswer(uint32_t stream) {
    while (true) {
      size_t at = 0;
      bool ended = false;
      while (have_ - at >= 9) {
        const uint8_t* const p = in_ + at;
        const size_t size = 9 + (size_t{p[0]} << 16 | size_t{p[1]} << 8 | p[2]);
        if (have_ - at < size) break;
        const uint32_t id =
            uint32_t{p[5]} << 24 | uint32_t{p[6]} << 16 | uint32_t{p[7]} << 8 | p[8];
        ended |= p[3] <= 1 && (p[4] & 1) != 0 && id == stream;
        if (p[3] == 3 || p[3] == 7) {
          std::fprintf(stderr, "the server refused the bare socket's frames\n");
          std::exit(1);
        }
        at += size;
      }
      std::copy(in_ + at, in_ + have_, in_);
      have_ -= at;
      if (ended) return;
      const ssize_t n = read(fd_, in_ + have_, sizeof(in_) - have_);
      if (n <= 0) {
        std::perror("read");
        std::exit(1);
      }
      have_ += static_cast<size_t>(n);
    }
  }

  int fd_ = -1;
  uint32_t stream_ = 1;
  std::string first_;
  std::string request_;
  size_t data_at_ = 0;
  uint8_t in_[1 << 16];
  size_t have_ = 0;
};

// ---- Rounds

struct Sample {
  double cpu_us = 0;  // per call
  double p50_us = 0;
  double p99_us = 0;
};

// Calls `once` until the time is over, on `threads` threads.
Sample Blocking(double seconds, int threads, const std::function<void()>& once) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  std::vector<std::vector<float>> latencies(static_cast<size_t>(threads));
  const int64_t before = ProcessCpuNs();
  const auto work = [&](std::vector<float>& mine) {
    for (auto now = Clock::now(); now < end;) {
      once();
      const auto after = Clock::now();
      mine.push_back(std::chrono::duration<float, std::micro>(after - now).count());
      now = after;
    }
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < latencies.size(); ++i) {
    others.emplace_back([&, i] { work(latencies[i]); });
  }
  work(latencies[0]);
  for (std::thread& other : others) other.join();
  const auto cpu = static_cast<double>(ProcessCpuNs() - before);
  std::vector<float> all;
  for (const auto& one : latencies) all.insert(all.end(), one.begin(), one.end());
  std::sort(all.begin(), all.end());
  const auto count = static_cast<double>(all.size());
  return {cpu / 1000 / count, all[all.size() / 2], all[all.size() * 99 / 100]};
}

// `begin(done)` starts a call that ends with `done`; `outstanding` at a time.
Sample Callbacks(double seconds, int outstanding,
                 const std::function<void(std::function<void()>)>& begin) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  std::atomic<int> open{outstanding};
  std::atomic<int64_t> calls{0};
  const int64_t before = ProcessCpuNs();
  std::function<void()> next;
  next = [&] {
    // Reads the clock seldom: it is not what is measured.
    const int64_t made = calls.fetch_add(1, std::memory_order_relaxed);
    if (made % 64 == 0 && Clock::now() >= end) {
      calls.fetch_add(INT32_MIN, std::memory_order_relaxed);
    }
    if (calls.load(std::memory_order_relaxed) < 0) {
      open.fetch_sub(1);
      return;
    }
    begin(next);
  };
  for (int i = 0; i < outstanding; ++i) begin(next);
  while (open.load() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto cpu = static_cast<double>(ProcessCpuNs() - before);
  int64_t made = calls.load();
  while (made < 0) made -= INT32_MIN;
  return {cpu / 1000 / static_cast<double>(made)};
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Run(const std::string& address, int rounds, double seconds) {
  BareSocket bare(address);
  const auto connect = [&] {
    return *Client::Create({.servers = {address}, .deadline = std::chrono::seconds(20)});
  };
  Client client = connect();
  Client callbacks = connect();
  Client streaming = connect();
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  const auto stub = v1::RateLimiter::NewStub(channel);
  v1::AcquireRequest request;
  v1::Charge* const charge = request.add_charges();
  charge->set_limit("huge");
  charge->set_key("key-1");
  AcquireStream stream = streaming.OpenStream({.deadline = std::chrono::seconds(20)});

  const auto thin = [&] {
    if (!client.Acquire("huge", "key-1")->granted) std::abort();
  };
  const auto grpcpp = [&] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::AcquireResponse response;
    if (!stub->Acquire(&context, request, &response).ok()) std::abort();
  };
  struct Load {
    const char* name;
    std::function<Sample()> run;
    std::vector<double> cpu = {}, p50 = {}, p99 = {};
  };
  std::vector<Load> loads = {
      {"bare socket, 1 thread", [&] { return Blocking(seconds, 1, [&] { bare.Call(); }); }},
      {"client, 1 thread", [&] { return Blocking(seconds, 1, thin); }},
      {"the same beside a stream",
       [&] {
         return Blocking(seconds, 1, [&] {
           if (!streaming.Acquire("huge", "key-1")->granted) std::abort();
         });
       }},
      {"grpc++, 1 thread", [&] { return Blocking(seconds, 1, grpcpp); }},
      {"client, 16 threads", [&] { return Blocking(seconds, 16, thin); }},
      {"grpc++, 16 threads", [&] { return Blocking(seconds, 16, grpcpp); }},
      {"client, 256 callbacks",
       [&] {
         return Callbacks(seconds, 256, [&](std::function<void()> done) {
           callbacks.AcquireAsync(Acquisition("huge", "key-1"),
                                  [done = std::move(done)](const Result<Decision>&) { done(); });
         });
       }},
      {"grpc++, 256 callbacks",
       [&] {
         return Callbacks(seconds, 256, [&](std::function<void()> done) {
           struct State {
             grpc::ClientContext context;
             v1::AcquireResponse response;
           };
           auto* const state = new State();
           stub->async()->Acquire(&state->context, &request, &state->response,
                                  [state, done = std::move(done)](const grpc::Status&) {
                                    delete state;
                                    done();
                                  });
         });
       }},
      {"client, stream of 1024",
       [&] {
         return Callbacks(seconds, 1024, [&](std::function<void()> done) {
           stream.Submit(Acquisition("huge", "key-1"),
                         [done = std::move(done)](const Result<Decision>&) { done(); });
         });
       }},
  };
  for (int round = 0; round < rounds; ++round) {
    for (Load& load : loads) {
      const Sample sample = load.run();
      load.cpu.push_back(sample.cpu_us);
      load.p50.push_back(sample.p50_us);
      load.p99.push_back(sample.p99_us);
    }
  }
  const double unit = Median(loads[0].cpu);
  std::printf("%-26s %10s %8s %10s %10s\n", "load", "CPU us", "x bare", "p50 us", "p99 us");
  for (const Load& load : loads) {
    std::printf("%-26s %10.2f %8.2f %10.1f %10.1f\n", load.name, Median(load.cpu),
                Median(load.cpu) / unit, Median(load.p50), Median(load.p99));
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: client_cost HOST:PORT [ROUNDS] [SECONDS]\n");
    return 2;
  }
  return sluice::Run(argv[1], argc > 2 ? std::atoi(argv[2]) : 9,
                     argc > 3 ? std::atof(argv[3]) : 1.0);
}
