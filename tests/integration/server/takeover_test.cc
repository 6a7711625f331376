// --takeover: a new server takes the sockets and the state over, under load.
#include "tests/integration/server/takeover_test.h"

#include <signal.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

// Clients that call without end, and what became of their calls.
class Load {
 public:
  explicit Load(std::function<std::shared_ptr<grpc::Channel>()> connect)
      : connect_(std::move(connect)) {
    for (int i = 0; i < 2; ++i) threads_.emplace_back([this] { CallUnary(); });
    threads_.emplace_back([this] { CallStream(); });
    for (int i = 0; i < 2; ++i) threads_.emplace_back([this] { CallHeld(); });
  }
  ~Load() { Stop(); }

  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  // Permits of `huge` that were granted.
  uint64_t granted() const { return granted_; }
  uint64_t held() const { return held_; }
  // What no client may see.
  std::string wrong() {
    const std::lock_guard lock(mu_);
    return wrong_;
  }

 private:
  static v1::AcquireRequest Request(const char* limit) {
    v1::AcquireRequest request;
    v1::Charge* const charge = request.add_charges();
    charge->set_limit(limit);
    charge->set_key("k");
    charge->set_permits(1);
    return request;
  }
  // Of a call that was not answered: it must say that it was not executed.
  void Note(const grpc::Status& status, const grpc::ClientContext& context) {
    const auto& metadata = context.GetServerTrailingMetadata();
    const auto executed = metadata.find(common::kExecutedMetadata);
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE && executed != metadata.end() &&
        executed->second == common::kNotExecuted) {
      return;
    }
    // grpc++ ends calls in this way that it has not sent when a GOAWAY comes.
    if (status.error_message() == "GOAWAY received") return;
    const std::lock_guard lock(mu_);
    wrong_ += std::to_string(status.error_code()) + " " + status.error_message() + "\n";
  }
  static void Prepare(grpc::ClientContext* context) {
    context->set_wait_for_ready(true);
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }

  void CallUnary() {
    const auto stub = v1::RateLimiter::NewStub(connect_());
    while (!stop_) {
      grpc::ClientContext context;
      Prepare(&context);
      v1::AcquireResponse response;
      const grpc::Status status = stub->Acquire(&context, Request("huge"), &response);
      if (!status.ok()) {
        Note(status, context);
      } else if (response.granted()) {
        ++granted_;
      }
    }
  }
  void CallStream() {
    const auto stub = v1::RateLimiter::NewStub(connect_());
    v1::AcquireBatchRequest request;
    for (int i = 0; i < 3; ++i) *request.add_acquisitions() = Request("huge");
    while (!stop_) {
      grpc::ClientContext context;
      Prepare(&context);
      const auto stream = stub->AcquireStream(&context);
      v1::AcquireBatchResponse response;
      while (!stop_ && stream->Write(request) && stream->Read(&response)) {
        for (const v1::AcquireResult& one : response.results()) {
          if (one.has_response() && one.response().granted()) ++granted_;
        }
      }
      stream->WritesDone();
      const grpc::Status status = stream->Finish();
      if (!status.ok()) Note(status, context);
    }
  }
  void CallHeld() {
    const auto stub = v1::RateLimiter::NewStub(connect_());
    v1::AcquireRequest request = Request("held");
    request.set_hold(true);
    request.mutable_max_wait()->set_seconds(60);
    while (!stop_) {
      grpc::ClientContext context;
      Prepare(&context);
      v1::AcquireResponse response;
      const grpc::Status status = stub->Acquire(&context, request, &response);
      if (!status.ok()) {
        Note(status, context);
      } else if (response.granted()) {
        ++held_;
      }
    }
  }

  const std::function<std::shared_ptr<grpc::Channel>()> connect_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> granted_{0};
  std::atomic<uint64_t> held_{0};
  std::mutex mu_;
  std::string wrong_;
  std::vector<std::thread> threads_;
};

class LoadTest : public TakeoverTest {
 protected:
  // Waits until clients were served since.
  bool Progresses(const Load& load) {
    const uint64_t before = load.granted();
    return Eventually([&] { return load.granted() > before + 20; });
  }
  void ExpectExact(Load& load) {
    load.Stop();
    EXPECT_EQ(load.wrong(), "");
    EXPECT_EQ(Remaining("huge", "k"), 1'000'000 - static_cast<int64_t>(load.granted()));
    EXPECT_GT(load.held(), 0u);
  }
};

TEST_F(LoadTest, NoCallIsLostAndNoPermitGrantedTwice) {
  StartFirst({"--threads=2"});
  Load load([this] { return server_->DataChannel(); });
  // More and fewer loops than sockets.
  for (const char* threads : {"--threads=2", "--threads=1", "--threads=3", "--threads=4"}) {
    ASSERT_TRUE(Progresses(load));
    ASSERT_NO_FATAL_FAILURE(TakeOver({threads}));
  }
  ASSERT_TRUE(Progresses(load));
  ExpectExact(load);
}

TEST_F(LoadTest, UnixSocketsAndTheStatesFolderAreHandedOver) {
  const std::vector<std::string> flags = {"--listen=unix:" + files_.Path("data.sock"),
                                          "--state_dir=" + files_.Path("state"), "--threads=2"};
  StartFirst(flags);
  Load load([this] { return server_->DataChannel(); });
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Progresses(load));
    ASSERT_NO_FATAL_FAILURE(TakeOver(flags));
  }
  ASSERT_TRUE(Progresses(load));
  ExpectExact(load);
  const int64_t left = Remaining("huge", "k");
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->WaitForExit(), 0);
  EXPECT_NE(access(files_.Path("data.sock").c_str(), F_OK), 0);
  EXPECT_NE(access(socket().c_str(), F_OK), 0);
  StartFirst(flags);
  EXPECT_THAT(server_->log(), HasSubstr("event=state_loaded"));
  EXPECT_EQ(Remaining("huge", "k"), left);
}

// The old one goes on whenever the new one dies before it confirmed; so far nothing is lost either.
TEST_F(LoadTest, ANewServerThatIsKilledAtAnyMomentChangesNothing) {
  StartFirst({"--threads=2"});
  Load load([this] { return server_->DataChannel(); });
  std::mt19937 random(1);
  for (int round = 0; round < 8; ++round) {
    ASSERT_TRUE(Progresses(load));
    std::unique_ptr<ServerProcess> next = StartNew({"--threads=2"}, /*in_background=*/true);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    kill(next->pid(), SIGSTOP);
    // It may have confirmed: then it serves, and the old one ends.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const bool confirmed = server_->log().find("event=handed_over") != std::string::npos;
    if (confirmed) {
      kill(next->pid(), SIGCONT);
      next->ReadUntilReady();
      ASSERT_TRUE(next->ready()) << next->log();
      EXPECT_EQ(server_->WaitForExit(), 0);
      UseServer(std::move(next));
      continue;
    }
    next->Kill();
  }
  ASSERT_TRUE(Progresses(load));
  ExpectExact(load);
}

// Either the new server has the last state of the old one, or it does not serve with its sockets.
TEST_F(LoadTest, AnOldServerThatIsKilledAtAnyMomentGrantsNothingTwice) {
  std::mt19937 random(2);
  for (int round = 0; round < 12; ++round) {
    StartFirst({"--threads=2"});
    std::atomic<bool> stop{false};
    std::atomic<int64_t> granted{0};
    std::thread client([&, channel = server_->DataChannel()] {
      const auto stub = v1::RateLimiter::NewStub(channel);
      while (!stop) {
        grpc::ClientContext context;
        context.set_deadline(Soon());
        v1::AcquireResponse response;
        if (!stub->Acquire(&context, Request("huge", "k"), &response).ok()) return;
        if (response.granted()) ++granted;
      }
    });
    EXPECT_TRUE(Eventually([&] { return granted > 20; }));
    std::unique_ptr<ServerProcess> next = StartNew({"--threads=2"}, /*in_background=*/true);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 120'000));
    server_->Kill();
    next->ReadUntilReady();
    stop = true;
    client.join();
    if (next->log().find("event=taken_over") != std::string::npos) {
      ASSERT_TRUE(next->ready()) << next->log();
      EXPECT_EQ(next->data_address(), server_->data_address());
      UseServer(std::move(next));
      const int64_t left = 1'000'000 - granted;
      const int64_t remaining = Remaining("huge", "k");
      EXPECT_LE(remaining, left);
      EXPECT_GE(remaining, left - 1) << "the answer to the last call may be lost";
    } else {
      // It came too late, and started as the first server; or it ended.
      EXPECT_TRUE(next->ready() || next->WaitForExit() == 1) << next->log();
    }
  }
}

class StateOverTest : public TakeoverTest {};

TEST_F(StateOverTest, ReceiptsSlotsAndAdminsLimitsAreKept) {
  StartFirst();
  v1::AcquireRequest request = Request("daily", "k", 40);
  request.set_want_receipt(true);
  v1::AcquireResponse response;
  ASSERT_TRUE(GrantedBy(*data_, request, &response));
  const std::string receipt = response.receipt();
  ASSERT_TRUE(Granted("slots", "k", 2));
  grpc::ClientContext put_context;
  v1::PutLimitRequest put;
  put.mutable_limit()->set_name("made");
  put.mutable_limit()->mutable_rate()->set_permits(50);
  put.mutable_limit()->mutable_rate()->mutable_period()->set_seconds(86400);
  v1::PutLimitResponse put_response;
  ASSERT_TRUE(admin_->PutLimit(&put_context, put, &put_response).ok());
  ASSERT_TRUE(Granted("made", "k", 20));
  for (int i = 0; i < 2; ++i) ASSERT_NO_FATAL_FAILURE(TakeOver());
  EXPECT_EQ(Remaining("made", "k"), 30);
  EXPECT_FALSE(Granted("slots", "k"));
  EXPECT_EQ(Remaining("daily", "k"), 60);
  grpc::ClientContext context;
  v1::RefundRequest refund;
  refund.set_receipt(receipt);
  v1::RefundResponse refunded;
  ASSERT_TRUE(data_->Refund(&context, refund, &refunded).ok());
  EXPECT_EQ(refunded.outcome(), v1::REFUND_OUTCOME_REFUNDED);
  EXPECT_EQ(Remaining("daily", "k"), 100);
}

TEST_F(StateOverTest, ACallerThatWaitsIsToldThatNothingWasDone) {
  StartFirst();
  ASSERT_TRUE(Granted("paced", "k"));
  grpc::Status status;
  grpc::ClientContext context;
  std::thread caller([&] {
    v1::AcquireRequest request = Request("paced", "k");
    request.mutable_max_wait()->set_seconds(3600);
    request.set_hold(true);
    v1::AcquireResponse response;
    status = data_->Acquire(&context, request, &response);
  });
  const bool waits = Eventually([&] {
    grpc::ClientContext query_context;
    v1::QueryRequest request;
    request.add_buckets()->set_limit("paced");
    request.mutable_buckets(0)->set_key("k");
    v1::QueryResponse response;
    EXPECT_TRUE(data_->Query(&query_context, request, &response).ok());
    return response.buckets(0).waiting() == 1;
  });
  std::unique_ptr<ServerProcess> next = StartNew();
  caller.join();
  EXPECT_TRUE(waits);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  const auto& metadata = context.GetServerTrailingMetadata();
  ASSERT_EQ(metadata.count(common::kExecutedMetadata), 1u);
  EXPECT_EQ(metadata.find(common::kExecutedMetadata)->second, common::kNotExecuted);
  ASSERT_TRUE(next->ready()) << next->log();
}

TEST_F(StateOverTest, AStateFolderMayComeAndGo) {
  const std::string folder = "--state_dir=" + files_.Path("state");
  StartFirst();
  ASSERT_TRUE(Granted("daily", "k", 10));
  ASSERT_NO_FATAL_FAILURE(TakeOver({folder}));
  ASSERT_TRUE(Granted("daily", "k", 10));
  ASSERT_NO_FATAL_FAILURE(TakeOver());
  EXPECT_EQ(Remaining("daily", "k"), 80);
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->WaitForExit(), 0);
  // What the folder has is not the state of the last run that used it.
  StartFirst({folder});
  EXPECT_THAT(server_->log(), HasSubstr("event=unclean_stop"));
  EXPECT_EQ(Remaining("daily", "k"), 0);
}

// A folder of the name that a file is to get: as a disk that is full.
TEST_F(StateOverTest, TheOldServerGoesOnIfTheStateFolderCannotBeWritten) {
  const std::string folder = "--state_dir=" + files_.Path("state");
  StartFirst({folder});
  ASSERT_TRUE(Granted("daily", "k", 10));
  // A start writes there first.
  std::filesystem::create_directory(files_.Path("state") + "/running.new");
  EXPECT_EQ(FailsWith(Flags({folder}), "running.new"), 1);
  EXPECT_TRUE(server_->Logs({"event=handing_over", "event=state_folder_not_writable"}));
  EXPECT_EQ(Remaining("daily", "k"), 90);
  std::filesystem::remove(files_.Path("state") + "/running.new");
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->WaitForExit(), 0) << server_->log();
  StartFirst({folder});
  EXPECT_EQ(Remaining("daily", "k"), 90);
}

TEST_F(StateOverTest, AServerThatCannotWriteToItsFolderDoesNotAskForTheState) {
  const std::string folder = "--state_dir=" + files_.Path("state");
  StartFirst({folder});
  ASSERT_TRUE(Granted("daily", "k", 10));
  std::filesystem::create_directory(files_.Path("state") + "/probe.new");
  EXPECT_EQ(FailsWith(Flags({folder}), folder + ": "), 1);
  EXPECT_THAT(server_->log(), ::testing::Not(HasSubstr("event=handing_over")));
  EXPECT_EQ(Remaining("daily", "k"), 90);
}

class RefusalTest : public TakeoverTest {};

TEST_F(RefusalTest, TheFirstServerListensForItsOwnerAlone) {
  StartFirst();
  struct stat file;
  ASSERT_EQ(stat(socket().c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
}

TEST_F(RefusalTest, TheSocketOfADeadProcessIsReplaced) {
  StartFirst();
  server_->Kill();
  ASSERT_EQ(access(socket().c_str(), F_OK), 0);
  StartFirst();
  EXPECT_TRUE(Granted("huge", "k"));
  ASSERT_NO_FATAL_FAILURE(TakeOver());
}

TEST_F(RefusalTest, BadFlagsAreRefused) {
  StartFirst();
  EXPECT_EQ(FailsWith({"--takeover=here"}, "--takeover=here: write the path of a Unix socket"), 2);
  EXPECT_EQ(FailsWith({"--takeover=/a", "--listen=unix:/a"}, "--takeover=/a: is --listen's too"),
            2);
  EXPECT_EQ(FailsWith(Flags({"--listen=127.0.0.2:0"}),
                      "--listen=127.0.0.2:0: the running server listens on 127.0.0.1:0, and a "
                      "takeover changes no address"),
            2);
  EXPECT_EQ(FailsWith(Flags({"--store=redis://127.0.0.1:1"}),
                      "--store: the running server keeps its buckets in memory, the new one in "
                      "Redis"),
            1);
  EXPECT_EQ(FailsWith(Flags({"--metrics_listen=" + server_->data_address()}),
                      "--metrics_listen=" + server_->data_address() + ": cannot listen"),
            1);
  EXPECT_EQ(FailsWith(Flags(), "limits[0].rate", "limits: [{name: api, rate: 5}]"), 2);
  EXPECT_EQ(FailsWith({"--takeover=/no/such/folder/socket"}, "--takeover=unix:/no/such/folder"), 1);
  EXPECT_EQ(FailsWith({"--takeover=" + files_.Write("file", "")}, "the file is not a socket"), 1);
  ServerProcess other({.flags = {"--listen=unix:" + files_.Path("data.sock")}});
  EXPECT_EQ(FailsWith({"--takeover=" + files_.Path("data.sock")},
                      "it is a socket of another kind; write a path that only --takeover uses"),
            2);
  EXPECT_THAT(server_->log(), HasSubstr("event=takeover_refused"));
}

}  // namespace
}  // namespace sluice::testing
