// The client against a server that keeps to no rule: each call has one clear outcome, memory is
// bounded, and the next call works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "sluice/client.h"
#include "tests/support/scripted_server.h"
#include "tests/support/test_tls.h"

namespace sluice {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace sluice::testing;  // NOLINT(google-build-using-namespace): the script's words

const TestTls& Tls() {
  static const TestTls tls;
  return tls;
}

ClientOptions OptionsFor(const ScriptedServer& server) {
  ClientOptions options;
  options.servers = {server.address()};
  if (server.has_tls()) options.tls = Tls().client_options();
  options.deadline = seconds(20);
  options.retry.max_attempts = 1;
  return options;
}

Client MakeClient(const ScriptedServer& server) { return *Client::Create(OptionsFor(server)); }

// A call in each of its forms.
enum class Form { kBlocking, kFuture };

Decision Ask(Client& client, Form form, std::chrono::nanoseconds deadline = seconds(20)) {
  const Acquisition acquisition("api", "k");
  CallOptions options;
  options.deadline = deadline;
  Result<Decision> result = form == Form::kBlocking
                                ? client.Acquire(acquisition, options)
                                : client.AcquireFuture(acquisition, options).get();
  if (result.ok()) return *result;
  Decision failed;
  failed.status = result.status();
  return failed;
}

struct Setup {
  Form form;
  bool tls;
};

class Http2ConnectionTest : public ::testing::TestWithParam<Setup> {
 protected:
  class ScriptedServer : public testing::ScriptedServer {
   public:
    explicit ScriptedServer(Script script)
        : testing::ScriptedServer(std::move(script), GetParam().tls ? Tls().context() : nullptr) {}
  };

  static Form form() { return GetParam().form; }

  // The first connection does what `first` says; later ones serve.
  static ScriptedServer::Script Then(std::function<void(Peer&)> first) {
    return [first = std::move(first)](Peer& peer, int connection) {
      if (!peer.Greet()) return;
      if (connection == 0) {
        first(peer);
      } else {
        peer.Serve();
      }
    };
  }

  // `hostile` answers the first request. The call fails with the status, the next call is granted.
  void ExpectFailure(std::function<void(Peer&, uint32_t stream)> hostile, StatusCode code,
                     bool may_have_executed,
                     const ::testing::Matcher<const std::string&>& message) {
    ScriptedServer server(Then([&](Peer& peer) {
      const uint32_t stream = peer.AwaitRequest();
      hostile(peer, stream);
      peer.Serve();
    }));
    Client client = MakeClient(server);
    const Decision failed = Ask(client, form());
    EXPECT_FALSE(failed.granted);
    EXPECT_EQ(failed.status.code(), code) << failed.status;
    EXPECT_EQ(failed.status.may_have_executed(), may_have_executed) << failed.status;
    EXPECT_THAT(failed.status.message(), message);
    EXPECT_TRUE(Ask(client, form()).granted);
  }
};

INSTANTIATE_TEST_SUITE_P(
    Forms, Http2ConnectionTest,
    ::testing::Values(Setup{Form::kBlocking, false}, Setup{Form::kFuture, false},
                      Setup{Form::kBlocking, true}, Setup{Form::kFuture, true}),
    [](const auto& info) {
      return std::string(info.param.form == Form::kBlocking ? "Blocking" : "Future") +
             (info.param.tls ? "OverTls" : "");
    });

// ---- Correct servers in unusual shapes

TEST_P(Http2ConnectionTest, KeepsItsConnection) {
  ScriptedServer server([](Peer& peer, int) {
    if (peer.Greet()) peer.Serve();
  });
  Client client = MakeClient(server);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Ask(client, form()).granted);
  EXPECT_EQ(server.connections(), 1);
}

TEST_P(Http2ConnectionTest, ReadsAnswersByteByByte) {
  ScriptedServer server(Then([](Peer& peer) {
    const uint32_t stream = peer.AwaitRequest();
    for (const char c : Answer(stream, kGranted)) peer.Send(std::string_view(&c, 1));
    peer.Serve();
  }));
  Client client = MakeClient(server);
  EXPECT_TRUE(Ask(client, form()).granted);
}

TEST_P(Http2ConnectionTest, ReadsSplitAndPaddedFrames) {
  ScriptedServer server(Then([](Peer& peer) {
    const uint32_t stream = peer.AwaitRequest();
    const std::string head = AnswerHead();
    peer.Send(Frame(kHeaders, 0, stream, head.substr(0, 5)) +
              Frame(kContinuation, 0, stream, head.substr(5, 3)) +
              Frame(kContinuation, kEndHeaders, stream, head.substr(8)));
    const std::string body = Message(kGranted);
    for (const char c : body) {
      peer.Send(Frame(kData, 0, stream, "") +
                Frame(kData, kPadded, stream, std::string("\x07") + c + std::string(7, '\0')));
    }
    peer.Send(Frame(kHeaders, kEndHeaders | kEndStream, stream, Field("grpc-status", "0")));
    peer.Serve();
  }));
  Client client = MakeClient(server);
  EXPECT_TRUE(Ask(client, form()).granted);
  EXPECT_TRUE(Ask(client, form()).granted);
  EXPECT_EQ(server.connections(), 1);
}

TEST_P(Http2ConnectionTest, SendsItsToken) {
  // These characters are longer in HPACK's Huffman code, so they are sent as they are.
  const std::string token(20, '~');
  ScriptedServer server([&](Peer& peer, int) {
    if (!peer.Greet()) return;
    while (const auto frame = peer.Read()) {
      if (frame->type != kHeaders) continue;
      const bool has_token = frame->payload.find("Bearer " + token) != std::string::npos;
      const uint32_t stream = peer.AwaitRequest();
      peer.Send(has_token ? Answer(stream, kGranted) : Refusal(stream, "16", "no token"));
    }
  });
  ClientOptions options = OptionsFor(server);
  options.token = token;
  Client client = *Client::Create(options);
  EXPECT_TRUE(Ask(client, form()).granted);
  Client other = MakeClient(server);
  EXPECT_EQ(Ask(other, form()).status, Status(StatusCode::kUnauthenticated, "no token"));
}

TEST_P(Http2ConnectionTest, AnswersPingsAndSettingsDuringACall) {
  std::atomic<int> acks{0};
  ScriptedServer server(Then([&](Peer& peer) {
    const uint32_t stream = peer.AwaitRequest();
    peer.Send(Frame(kPing, 0, 0, "12345678") + Frame(kSettings, 0, 0, Setting(4, 100)) +
              Frame(kWindowUpdate, 0, 0, Number(1000, 4)) +
              Frame(kHeaders, kEndHeaders, stream, Field(":status", "100")));
    while (acks < 2) {
      const auto frame = peer.Read();
      if (!frame.has_value()) return;
      if ((frame->type == kPing && frame->payload == "12345678") || frame->type == kSettings) {
        if ((frame->flags & kAck) != 0) ++acks;
      }
    }
    peer.Send(Answer(stream, kGranted));
    peer.Serve();
  }));
  Client client = MakeClient(server);
  EXPECT_TRUE(Ask(client, form()).granted);
  EXPECT_GE(acks, 2);
}

TEST_P(Http2ConnectionTest, WaitsUntilTheServersWindowOpens) {
  ScriptedServer server([](Peer& peer, int) {
    if (!peer.Greet(Setting(4, 0))) return;
    while (const auto frame = peer.Read()) {
      if (frame->type == kHeaders) {
        peer.Send(Frame(kWindowUpdate, 0, frame->stream, Number(1000, 4)));
      } else if (frame->type == kData && (frame->flags & kEndStream) != 0) {
        peer.Send(Answer(frame->stream, kGranted));
      }
    }
  });
  Client client = MakeClient(server);
  EXPECT_TRUE(Ask(client, form()).granted);
}

TEST_P(Http2ConnectionTest, WaitsUntilTheServerAcceptsAnotherStream) {
  std::atomic<int> most{0};
  ScriptedServer server([&](Peer& peer, int) {
    if (!peer.Greet(Setting(3, 2))) return;
    std::vector<uint32_t> open;
    int served = 0;
    while (served < 20) {
      const uint32_t stream = peer.AwaitRequest();
      if (stream == 0) return;
      open.push_back(stream);
      most = std::max(most.load(), static_cast<int>(open.size()));
      if (open.size() < 2 && served < 19) continue;
      for (const uint32_t one : open) peer.Send(Answer(one, kGranted));
      served += static_cast<int>(open.size());
      open.clear();
    }
    peer.AwaitEnd();
  });
  Client client = MakeClient(server);
  std::vector<std::thread> threads;
  std::atomic<int> granted{0};
  for (int i = 0; i < 20; ++i) {
    threads.emplace_back([&] { granted += Ask(client, form()).granted ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(granted, 20);
  EXPECT_EQ(most, 2);
}

TEST_P(Http2ConnectionTest, WaitsForAServerThatAcceptsNoStreamsYet) {
  ScriptedServer server([](Peer& peer, int) {
    if (!peer.Greet(Setting(3, 0))) return;
    // Let the calls wait.
    std::this_thread::sleep_for(milliseconds(20));
    peer.Send(Frame(kSettings, 0, 0, Setting(3, 1)));
    peer.Serve();
  });
  Client client = MakeClient(server);
  std::vector<std::thread> threads;
  std::atomic<int> granted{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { granted += Ask(client, form()).granted ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(granted, 4);
}

TEST_P(Http2ConnectionTest, NoticesThatAServerWithoutRoomCloses) {
  ScriptedServer server([](Peer& peer, int connection) {
    if (connection > 0) {
      if (peer.Greet()) peer.Serve();
      return;
    }
    if (!peer.Greet(Setting(3, 0))) return;
    std::this_thread::sleep_for(milliseconds(20));
  });
  Client client = MakeClient(server);
  EXPECT_TRUE(Ask(client, form()).granted);
}

// ---- Answers that are errors

TEST_P(Http2ConnectionTest, ReadsErrorsWithoutABody) {
  ScriptedServer server(Then([](Peer& peer) {
    peer.Send(Refusal(peer.AwaitRequest(), "5", "no limit \"%C3%A4\", 100%25 sure"));
    peer.Serve();
  }));
  Client client = MakeClient(server);
  EXPECT_EQ(Ask(client, form()).status,
            Status(StatusCode::kNotFound, "no limit \"\xC3\xA4\", 100% sure"));
  EXPECT_TRUE(Ask(client, form()).granted);
  EXPECT_EQ(server.connections(), 1);
}

TEST_P(Http2ConnectionTest, BelievesTheMarkOfACallThatWasNotExecuted) {
  ExpectFailure(
      [](Peer& peer, uint32_t stream) {
        peer.Send(Refusal(stream, "14", "draining", Field("sluice-executed", "no")));
      },
      StatusCode::kUnavailable, false, "draining");
  ExpectFailure([](Peer& peer, uint32_t stream) { peer.Send(Refusal(stream, "14", "who knows")); },
                StatusCode::kUnavailable, true, "who knows");
}

TEST_P(Http2ConnectionTest, MapsHttpErrorsOfProxies) {
  const auto http = [](const char* status) {
    return [status](Peer& peer, uint32_t stream) {
      peer.Send(Frame(kHeaders, kEndHeaders, stream,
                      Field(":status", status) + Field("content-type", "text/html")) +
                Frame(kData, kEndStream, stream, "<html>"));
    };
  };
  ExpectFailure(http("503"), StatusCode::kUnavailable, true, HasSubstr("HTTP status 503"));
  ExpectFailure(http("403"), StatusCode::kPermissionDenied, false, HasSubstr("HTTP status 403"));
  ExpectFailure(http("200"), StatusCode::kUnknown, true, HasSubstr("not one of gRPC"));
}

TEST_P(Http2ConnectionTest, ReportsAnswersThatAreNotGrpc) {
  const std::string head = AnswerHead();
  ExpectFailure(
      [&](Peer& peer, uint32_t stream) {
        peer.Send(Frame(kHeaders, kEndHeaders, stream, head) +
                  Frame(kData, kEndStream, stream, Message(kGranted)));
      },
      StatusCode::kUnknown, true, HasSubstr("no grpc-status"));
  ExpectFailure(
      [&](Peer& peer, uint32_t stream) {
        peer.Send(Frame(kHeaders, kEndHeaders, stream, head) +
                  Frame(kHeaders, kEndHeaders | kEndStream, stream, Field("grpc-status", "0")));
      },
      StatusCode::kInternal, true, HasSubstr("no answer"));
  ExpectFailure(
      [&](Peer& peer, uint32_t stream) {
        peer.Send(Frame(kHeaders, kEndHeaders, stream, head) +
                  Frame(kData, 0, stream, Message(kGranted).substr(0, 7)) +
                  Frame(kHeaders, kEndHeaders | kEndStream, stream, Field("grpc-status", "0")));
      },
      StatusCode::kInternal, true, HasSubstr("within a message"));
  ExpectFailure([&](Peer& peer, uint32_t stream) { peer.Send(Answer(stream, "\x08")); },
                StatusCode::kInternal, true, HasSubstr("not a message of sluice.v1"));
  ExpectFailure(
      [&](Peer& peer, uint32_t stream) {
        peer.Send(Frame(kHeaders, kEndHeaders, stream, head) +
                  Frame(kData, 0, stream, Message(kGranted) + Message(kGranted)));
      },
      StatusCode::kInternal, true, HasSubstr("more than one answer"));
}

// ---- Memory

TEST_P(Http2ConnectionTest, BoundsTheSizeOfAMessage) {
  ExpectFailure(
      [](Peer& peer, uint32_t stream) {
        peer.Send(Frame(kHeaders, kEndHeaders, stream, AnswerHead()) +
                  Frame(kData, 0, stream, std::string("\0\x40\0\0\0", 5)));
      },
      StatusCode::kInternal, true, HasSubstr("1073741824 bytes"));
}

TEST_P(Http2ConnectionTest, RefusesCompressedAnswers) {
  ExpectFailure(
      [](Peer& peer, uint32_t stream) {
        peer.Send(Frame(kHeaders, kEndHeaders, stream, AnswerHead()) +
                  Frame(kData, 0, stream, "\x01" + Message(kGranted).substr(1)));
      },
      StatusCode::kInternal, true, HasSubstr("compressed"));
}

TEST_P(Http2ConnectionTest, BoundsEndlessHeaders) {
  ExpectFailure(
      [](Peer& peer, uint32_t stream) {
        const std::string field = Field("x", std::string(1000, 'x'));
        peer.Send(Frame(kHeaders, 0, stream, AnswerHead()));
        for (int i = 0; i < 100'000; ++i) {
          if (!peer.Send(Frame(kContinuation, 0, stream, field))) return;
        }
        ADD_FAILURE() << "100 MB of headers were read";
      },
      StatusCode::kUnavailable, true, HasSubstr("breaks HTTP/2's rules"));
}

TEST_P(Http2ConnectionTest, BoundsEmptyContinuations) {
  ExpectFailure(
      [](Peer& peer, uint32_t stream) {
        peer.Send(Frame(kHeaders, 0, stream, AnswerHead()));
        for (int i = 0; i < 1'000'000; ++i) {
          if (!peer.Send(Frame(kContinuation, 0, stream, ""))) return;
        }
        ADD_FAILURE() << "a million empty frames were read";
      },
      StatusCode::kUnavailable, true, HasSubstr("breaks HTTP/2's rules"));
}

TEST_P(Http2ConnectionTest, BoundsHeadersThatGrowWhenTheyAreRead) {
  ExpectFailure(
      [](Peer& peer, uint32_t stream) {
        // One entry of 3,900 bytes, and 4,000 references to it: 16 MB.
        std::string bomb = AnswerHead();
        bomb += "\x40";
        bomb += Field("x", std::string(3900, 'x')).substr(1);
        bomb += std::string(4000, '\xBE');
        peer.Send(Frame(kHeaders, kEndHeaders, stream, bomb));
      },
      StatusCode::kInternal, true, HasSubstr("larger than"));
}

TEST_P(Http2ConnectionTest, EndsConnectionsThatFlood) {
  const auto flood = [](std::string frame) {
    return [frame](Peer& peer, uint32_t) {
      std::string many;
      for (int i = 0; i < 1000; ++i) many += frame;
      for (int i = 0; i < 10'000; ++i) {
        if (!peer.Send(many)) return;
      }
      ADD_FAILURE() << "ten million frames were read";
    };
  };
  ExpectFailure(flood(Frame(kPing, 0, 0, "12345678")), StatusCode::kUnavailable, true,
                HasSubstr("breaks HTTP/2's rules"));
  ExpectFailure(flood(Frame(kSettings, 0, 0, "")), StatusCode::kUnavailable, true,
                HasSubstr("breaks HTTP/2's rules"));
  ExpectFailure(flood(Frame(kData, 0, 1, "")), StatusCode::kUnavailable, true,
                HasSubstr("breaks HTTP/2's rules"));
}

// ---- Rules of HTTP/2

TEST_P(Http2ConnectionTest, EndsConnectionsThatBreakHttp2) {
  const auto send = [](std::string bytes) {
    return [bytes](Peer& peer, uint32_t) { peer.Send(bytes); };
  };
  const std::string large_window = Number(0x7FFFFFFF, 4);
  for (const std::string& bytes :
       {Answer(99, kGranted), Answer(2, kGranted), Frame(kData, 0, 77, "x"),
        Frame(kPushPromise, kEndHeaders, 1, Number(2, 4) + AnswerHead()),
        Frame(kWindowUpdate, 0, 0, large_window), Frame(kWindowUpdate, 0, 0, Number(0, 4)),
        Frame(kHeaders, kEndHeaders, 1, "\xFF\xFF\xFF\xFF\xFF\xFF"),
        Frame(kSettings, 0, 0, Setting(4, 0x80000000)), Frame(kPing, 0, 0, "short"),
        Frame(kContinuation, kEndHeaders, 1, ""),
        std::string("HTTP/1.1 400 Bad Request\r\n\r\n")}) {
    ExpectFailure(send(bytes), StatusCode::kUnavailable, true, HasSubstr("breaks HTTP/2's rules"));
  }
}

TEST_P(Http2ConnectionTest, FailsACallWhoseAnswerBeginsWithData) {
  ExpectFailure(
      [](Peer& peer, uint32_t stream) { peer.Send(Frame(kData, 0, stream, Message(kGranted))); },
      StatusCode::kInternal, true, HasSubstr("malformed"));
}

TEST_P(Http2ConnectionTest, FailsACallThatTheServerResets) {
  ExpectFailure(
      [](Peer& peer, uint32_t stream) { peer.Send(Frame(kRstStream, 0, stream, Number(8, 4))); },
      StatusCode::kUnavailable, true, HasSubstr("HTTP/2 error 8"));
  ExpectFailure(
      [](Peer& peer, uint32_t stream) { peer.Send(Frame(kRstStream, 0, stream, Number(7, 4))); },
      StatusCode::kUnavailable, false, HasSubstr("did not accept"));
}

TEST_P(Http2ConnectionTest, AcceptsAResetAfterTheAnswer) {
  ScriptedServer server(Then([](Peer& peer) {
    const uint32_t stream = peer.AwaitRequest();
    peer.Send(Answer(stream, kGranted) + Frame(kRstStream, 0, stream, Number(0, 4)));
    peer.Serve();
  }));
  Client client = MakeClient(server);
  EXPECT_TRUE(Ask(client, form()).granted);
  EXPECT_TRUE(Ask(client, form()).granted);
  EXPECT_EQ(server.connections(), 1);
}

// ---- Connections that end

TEST_P(Http2ConnectionTest, SendsACallAgainThatTheServerDidNotLookAt) {
  std::atomic<int> requests{0};
  ScriptedServer server([&](Peer& peer, int connection) {
    if (!peer.Greet()) return;
    while (const uint32_t stream = peer.AwaitRequest()) {
      ++requests;
      if (connection < 2) {
        peer.Send(Frame(kGoaway, 0, 0, Number(0, 4) + Number(0, 4)));
        return peer.AwaitEnd();
      }
      peer.Send(Answer(stream, kGranted));
    }
  });
  Client client = MakeClient(server);
  EXPECT_TRUE(Ask(client, form()).granted);
  EXPECT_EQ(requests, 3);
}

TEST_P(Http2ConnectionTest, SendsACallAgainOnTheConnectionThatHasReplacedItsOwn) {
  std::promise<void> replaced;
  ScriptedServer server(Then([&](Peer& peer) {
    peer.AwaitRequest();
    peer.Send(Frame(kGoaway, 0, 0, Number(0x7FFFFFFF, 4) + Number(0, 4)));
    replaced.get_future().wait();
    peer.Send(Frame(kGoaway, 0, 0, Number(0, 4) + Number(0, 4)));
    peer.AwaitEnd();
  }));
  Client client = MakeClient(server);
  auto first = std::async(std::launch::async, [&] { return Ask(client, form()); });
  while (server.connections() < 2) static_cast<void>(Ask(client, form(), milliseconds(10)));
  EXPECT_TRUE(Ask(client, form()).granted);
  replaced.set_value();
  const Decision decision = first.get();
  EXPECT_TRUE(decision.granted) << decision.status;
}

TEST(Http2ConnectionBreaksTest, SendsUnsentCallsOnTheConnectionThatHasReplacedTheirs) {
  std::promise<void> open;
  std::promise<void> full;
  std::promise<void> replaced;
  ScriptedServer server([&](Peer& peer, int connection) {
    // Windows in which much has room.
    if (!peer.Greet(Setting(4, 1 << 30))) return;
    peer.Send(Frame(kWindowUpdate, 0, 0, Number(1 << 30, 4)));
    if (connection > 0) return peer.Serve();
    peer.Send(Answer(peer.AwaitRequest(), kGranted));
    const uint32_t stream = peer.AwaitRequest();
    open.set_value();
    full.get_future().wait();
    peer.Send(Frame(kGoaway, 0, 0, Number(0x7FFFFFFF, 4) + Number(0, 4)) +
              Answer(stream, kGranted));
    replaced.get_future().wait();
  });
  Client client = MakeClient(server);
  ASSERT_TRUE(Ask(client, Form::kFuture).granted);  // and it knows the windows
  auto first = client.AcquireFuture(Acquisition("api"));
  open.get_future().wait();
  // More than the socket takes, so the next call stays unsent.
  auto large = client.AcquireFuture(Acquisition("api", std::string(size_t{2} << 20, 'x')));
  auto unsent = client.AcquireFuture(Acquisition("api"));
  full.set_value();
  EXPECT_TRUE(first.get()->granted);
  EXPECT_TRUE(Ask(client, Form::kFuture).granted);
  replaced.set_value();
  EXPECT_TRUE(large.get()->status.may_have_executed());
  const Result<Decision> decision = unsent.get();
  EXPECT_TRUE(decision->granted) << decision->status;
  EXPECT_EQ(server.connections(), 2);
}

TEST_P(Http2ConnectionTest, GivesUpOnServersThatAlwaysGoAway) {
  ScriptedServer server([](Peer& peer, int) {
    if (!peer.Greet() || peer.AwaitRequest() == 0) return;
    peer.Send(Frame(kGoaway, 0, 0, Number(0, 4) + Number(0, 4)));
    peer.AwaitEnd();
  });
  Client client = MakeClient(server);
  const Decision failed = Ask(client, form());
  EXPECT_EQ(failed.status.code(), StatusCode::kUnavailable);
  EXPECT_FALSE(failed.status.may_have_executed());
}

TEST_P(Http2ConnectionTest, FinishesCallsOfAServerThatGoesAway) {
  ScriptedServer server(Then([](Peer& peer) {
    const uint32_t stream = peer.AwaitRequest();
    peer.Send(Frame(kGoaway, 0, 0, Number(stream, 4) + Number(0, 4)));
    peer.Send(Answer(stream, kGranted));
    peer.AwaitEnd();
  }));
  Client client = MakeClient(server);
  EXPECT_TRUE(Ask(client, form()).granted);
  EXPECT_TRUE(Ask(client, form()).granted);
  EXPECT_EQ(server.connections(), 2);
}

TEST_P(Http2ConnectionTest, CallOnAConnectionThatClosesMayHaveBeenExecuted) {
  ScriptedServer server(Then([](Peer& peer) { peer.AwaitRequest(); }));
  Client client = MakeClient(server);
  const Decision lost = Ask(client, form());
  EXPECT_EQ(lost.status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(lost.status.may_have_executed());
  EXPECT_THAT(lost.status.message(), HasSubstr("the server closed the connection"));
  EXPECT_TRUE(Ask(client, form()).granted);
}

TEST_P(Http2ConnectionTest, CallToAServerThatSpeaksNoHttp2WasNotExecuted) {
  ScriptedServer server([](Peer& peer, int connection) {
    if (connection > 0) {
      if (peer.Greet()) peer.Serve();
      return;
    }
    peer.Send("SSH-2.0-OpenSSH_9.2p1\r\n");
    peer.AwaitEnd();
  });
  Client client = MakeClient(server);
  const Decision failed = Ask(client, form());
  EXPECT_EQ(failed.status.code(), StatusCode::kUnavailable);
  EXPECT_FALSE(failed.status.may_have_executed());
  EXPECT_THAT(failed.status.message(),
              AllOf(HasSubstr("cannot connect to unix:@"), HasSubstr("does not speak HTTP/2")));
}

TEST_P(Http2ConnectionTest, SilentServerLeavesCallsUnexecuted) {
  ScriptedServer server([](Peer& peer, int) { peer.AwaitEnd(); });
  Client client = MakeClient(server);
  const Decision failed = Ask(client, form(), milliseconds(50));
  EXPECT_EQ(failed.status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(failed.status.may_have_executed());
  EXPECT_THAT(failed.status.message(), HasSubstr("could not connect"));
}

TEST_P(Http2ConnectionTest, ServerThatNeverAnswersMayHaveExecutedTheCall) {
  ScriptedServer server(Then([](Peer& peer) {
    peer.Send(Answer(peer.AwaitRequest(), kGranted));
    peer.AwaitRequest();
    peer.Serve();
  }));
  Client client = MakeClient(server);
  // So that the deadline is not that of a connection which is not there yet.
  EXPECT_TRUE(Ask(client, form()).granted);
  const Decision late = Ask(client, form(), milliseconds(50));
  EXPECT_EQ(late.status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(late.status.may_have_executed());
  EXPECT_TRUE(Ask(client, form()).granted);
  EXPECT_EQ(server.connections(), 1);
}

// A server ends a call when its grpc-timeout is over, which is when the client does.
TEST_P(Http2ConnectionTest, CallThatTheServerCancelsAtItsDeadlineIsLate) {
  constexpr milliseconds kDeadline{50};
  ScriptedServer server(Then([&](Peer& peer) {
    peer.Send(Answer(peer.AwaitRequest(), kGranted));
    for (const bool reset : {true, false, true, false}) {
      const uint32_t stream = peer.AwaitRequest();
      // Before the client's own timer, but not more than a grpc-timeout is rounded down.
      std::this_thread::sleep_for(kDeadline - microseconds(500));
      peer.Send(reset ? Frame(kRstStream, 0, stream, Number(8, 4)) : Refusal(stream, "1", "late"));
    }
    peer.Serve();
  }));
  Client client = MakeClient(server);
  ASSERT_TRUE(Ask(client, form()).granted);
  for (int i = 0; i < 4; ++i) {
    const Decision late = Ask(client, form(), kDeadline);
    EXPECT_EQ(late.status.code(), StatusCode::kDeadlineExceeded) << late.status;
    EXPECT_TRUE(late.status.may_have_executed()) << late.status;
  }
  EXPECT_TRUE(Ask(client, form()).granted);
}

TEST_P(Http2ConnectionTest, NoticesAConnectionThatWasClosedWhileItWasIdle) {
  ScriptedServer server(
      Then([&](Peer& peer) { peer.Send(Answer(peer.AwaitRequest(), kGranted)); }));
  Client client = MakeClient(server);
  EXPECT_TRUE(Ask(client, form()).granted);
  // Long enough that the client looks before it sends.
  std::this_thread::sleep_for(milliseconds(100));
  const Decision decision = Ask(client, form());
  EXPECT_TRUE(decision.granted) << decision.status;
  EXPECT_EQ(server.connections(), 2);
}

// ---- Threads

// ThreadSanitizer cannot start threads in the child of a process with several.
#if defined(__SANITIZE_THREAD__)
constexpr bool kMayStartThreadsInChild = false;
#elif defined(__has_feature)
constexpr bool kMayStartThreadsInChild = !__has_feature(thread_sanitizer);
#else
constexpr bool kMayStartThreadsInChild = true;
#endif

TEST(Http2ConnectionThreadsTest, LeaderThatTimesOutHandsOver) {
  std::atomic<uint32_t> second{0};
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  ScriptedServer server([&](Peer& peer, int) {
    if (!peer.Greet()) return;
    peer.AwaitRequest();
    second = peer.AwaitRequest();
    gone.wait();
    peer.Send(Answer(second, kGranted));
    peer.AwaitEnd();
  });
  Client client = MakeClient(server);
  std::thread leader([&] {
    EXPECT_EQ(Ask(client, Form::kBlocking, milliseconds(100)).status.code(),
              StatusCode::kDeadlineExceeded);
    go.set_value();
  });
  while (server.connections() == 0) std::this_thread::yield();
  EXPECT_TRUE(Ask(client, Form::kBlocking).granted);
  leader.join();
}

TEST(Http2ConnectionThreadsTest, BlockingCallsWorkWithinCallbacks) {
  ScriptedServer server([](Peer& peer, int) {
    if (peer.Greet()) peer.Serve();
  });
  Client client = MakeClient(server);
  std::promise<bool> done;
  client.AcquireAsync(Acquisition("api"), [&](const Result<Decision>&) {
    done.set_value(Ask(client, Form::kBlocking).granted);
  });
  EXPECT_TRUE(done.get_future().get());
}

TEST(Http2ConnectionThreadsTest, BlockingCallsEndWhileACallbackBlocks) {
  // The first request is a watch, whose answers never come; the server grants the others.
  ScriptedServer server([](Peer& peer, int) {
    if (!peer.Greet()) return;
    peer.AwaitRequest();
    peer.Serve();
  });
  Client client = MakeClient(server);
  const std::vector<Bucket> buckets = {{"api", "k"}};
  auto watch = client.Watch(buckets, {}, {.on_change = [](auto) {}, .on_closed = [](auto) {}});
  std::promise<void> entered;
  std::promise<void> release;
  client.AcquireAsync(Acquisition("api"), [&](const Result<Decision>&) {
    entered.set_value();
    release.get_future().wait();
  });
  entered.get_future().wait();
  // The callback's thread does not read now.
  EXPECT_TRUE(Ask(client, Form::kBlocking).granted);
  release.set_value();
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Ask(client, Form::kBlocking).granted);
}

TEST(Http2ConnectionThreadsTest, BlockingCallsStartNoThread) {
  const auto threads = [] {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      static_cast<void>(entry);
      ++count;
    }
    return count;
  };
  const int before = threads();
  ScriptedServer server([](Peer& peer, int) {
    if (peer.Greet()) peer.Serve();
  });
  Client client = MakeClient(server);
  ASSERT_TRUE(Ask(client, Form::kBlocking).granted);
  const std::vector<Bucket> buckets = {{"api", "k"}};
  static_cast<void>(client.Query(buckets));
  static_cast<void>(client.AcquireBatch(std::vector<Acquisition>(3, Acquisition("api"))));
  // The server has two: one accepts, one serves. The thread that connected ends by itself.
  for (int i = 0; i < 1000 && threads() > before + 2; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(threads(), before + 2);
  EXPECT_TRUE(Ask(client, Form::kFuture).granted);
  EXPECT_EQ(threads(), before + 3);
}

TEST(Http2ConnectionThreadsTest, ForkedChildGetsAClearErrorAndTheParentGoesOn) {
  ScriptedServer server([](Peer& peer, int) {
    if (peer.Greet()) peer.Serve();
  });
  Client client = MakeClient(server);
  ASSERT_TRUE(Ask(client, Form::kBlocking).granted);
  ASSERT_TRUE(Ask(client, Form::kFuture).granted);
  std::optional<AcquireStream> open = client.OpenStream();
  // The server answers no streams, so this one is in flight.
  const auto in_flight = open->Submit(Acquisition("api"));
  const pid_t child = fork();
  if (child == 0) {
    int failures = 0;
    {
      const Result<Decision> streamed = open->Submit(Acquisition("api")).get();
      failures += streamed.status().code() == StatusCode::kFailedPrecondition ? 0 : 16;
      open.reset();
      Client mine = std::move(client);
      const Result<Decision> result = mine.Acquire("api", "k");
      failures += result.status().code() == StatusCode::kFailedPrecondition &&
                          result.status().message().find("fork()") != std::string::npos
                      ? 0
                      : 1;
      failures += mine.AcquireFuture(Acquisition("api")).get().ok() ? 2 : 0;
      auto stream = mine.OpenStream();
      failures += stream.Submit(Acquisition("api")).get().ok() ? 4 : 0;
    }
    if (kMayStartThreadsInChild) {
      // A client of its own works.
      Client fresh = MakeClient(server);
      failures += Ask(fresh, Form::kBlocking).granted ? 0 : 8;
    }
    _exit(failures);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(Ask(client, Form::kBlocking).granted);
  EXPECT_TRUE(Ask(client, Form::kFuture).granted);
  EXPECT_EQ(server.connections(), kMayStartThreadsInChild ? 2 : 1);
}

}  // namespace
}  // namespace sluice
