package io.sluice.interop;

import io.grpc.Channel;
import io.grpc.Context;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.StreamObserver;
import io.sluice.v1.AcquireBatchRequest;
import io.sluice.v1.AcquireBatchResponse;
import io.sluice.v1.AcquireRequest;
import io.sluice.v1.AcquireResult;
import io.sluice.v1.Charge;
import io.sluice.v1.QueryRequest;
import io.sluice.v1.QueryResponse;
import io.sluice.v1.RateLimiterGrpc;
import io.sluice.v1.WatchRequest;
import java.io.File;
import java.util.Iterator;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** The interop scenarios with grpc-java. Arguments: HOST PORT [CA_FILE]. */
public final class Client {
  private interface Scenario {
    void run() throws Exception;
  }

  private static boolean failed = false;

  private static void check(String name, Scenario scenario) {
    try {
      scenario.run();
      System.out.println("ok " + name);
    } catch (Exception | AssertionError fault) {
      failed = true;
      System.out.println("FAILED " + name + ": " + fault);
    }
  }

  private static void ensure(boolean condition, Object what) {
    if (!condition) {
      throw new AssertionError(what);
    }
  }

  private static AcquireRequest charge(String limit, String key, long permits) {
    return AcquireRequest.newBuilder()
        .addCharges(Charge.newBuilder().setLimit(limit).setKey(key).setPermits(permits))
        .build();
  }

  private static void expectError(Scenario call, Status.Code code, String text) throws Exception {
    try {
      call.run();
    } catch (StatusRuntimeException error) {
      String description = error.getStatus().getDescription();
      ensure(
          error.getStatus().getCode() == code
              && (text.isEmpty() || (description != null && description.contains(text))),
          error);
      return;
    }
    throw new AssertionError("no error; wanted " + code);
  }

  private static Iterator<QueryResponse> watch(
      RateLimiterGrpc.RateLimiterBlockingStub client, String prefix, long timeoutMs) {
    Iterator<QueryResponse> answers =
        client
            .withDeadlineAfter(timeoutMs, TimeUnit.MILLISECONDS)
            .watch(
                WatchRequest.newBuilder()
                    .addBuckets(
                        QueryRequest.Bucket.newBuilder().setLimit("hourly").setKey(prefix + "-watch"))
                    .build());
    ensure(answers.next().getBuckets(0).getRemaining() == 3, "first answer");
    return answers;
  }

  private static void stream(Channel channel, String prefix) throws Exception {
    CompletableFuture<Long> done = new CompletableFuture<>();
    StreamObserver<AcquireBatchRequest> requests =
        RateLimiterGrpc.newStub(channel)
            .withDeadlineAfter(10, TimeUnit.SECONDS)
            .acquireStream(
                new StreamObserver<AcquireBatchResponse>() {
                  private long remaining = 1000;

                  @Override
                  public void onNext(AcquireBatchResponse answer) {
                    for (AcquireResult result : answer.getResultsList()) {
                      remaining--;
                      if (result.getResponse().getCharges(0).getRemaining() != remaining) {
                        done.completeExceptionally(new AssertionError(result));
                      }
                    }
                  }

                  @Override
                  public void onError(Throwable fault) {
                    done.completeExceptionally(fault);
                  }

                  @Override
                  public void onCompleted() {
                    done.complete(remaining);
                  }
                });
    AcquireBatchRequest.Builder batch = AcquireBatchRequest.newBuilder();
    for (int i = 0; i < 5; i++) {
      batch.addAcquisitions(charge("wide", prefix + "-stream", 1));
    }
    for (int i = 0; i < 10; i++) {
      requests.onNext(batch.build());
    }
    requests.onCompleted();
    ensure(done.get() == 950, done.get() + " left");
  }

  public static void main(String[] arguments) throws Exception {
    NettyChannelBuilder builder =
        NettyChannelBuilder.forAddress(arguments[0], Integer.parseInt(arguments[1]));
    String prefix = "java";
    if (arguments.length > 2) {
      builder.sslContext(GrpcSslContexts.forClient().trustManager(new File(arguments[2])).build());
      prefix = "java-tls";
    } else {
      builder.usePlaintext();
    }
    ManagedChannel channel = builder.build();
    String name = prefix;
    RateLimiterGrpc.RateLimiterBlockingStub client = RateLimiterGrpc.newBlockingStub(channel);

    check(
        "unary",
        () -> {
          var first = client.acquire(charge("hourly", name + "-unary", 3));
          ensure(first.getGranted() && first.getCharges(0).getRemaining() == 0
              && first.getCharges(0).getCapacity() == 3, first);
          var second = client.acquire(charge("hourly", name + "-unary", 1));
          ensure(!second.getGranted() && second.getRetryAfter().getSeconds() > 0, second);
        });
    check(
        "batch",
        () -> {
          var answer =
              client.acquireBatch(
                  AcquireBatchRequest.newBuilder()
                      .addAcquisitions(charge("wide", name + "-batch", 1))
                      .addAcquisitions(charge("no-such-limit", "", 1))
                      .addAcquisitions(charge("wide", name + "-batch", 2))
                      .build());
          ensure(answer.getResults(0).getResponse().getGranted(), answer);
          ensure(answer.getResults(1).getError().getCode() == 5
              && answer.getResults(1).getError().getMessage().contains("no-such-limit"), answer);
          ensure(answer.getResults(2).getResponse().getCharges(0).getRemaining() == 997, answer);
        });
    check("stream", () -> stream(channel, name));
    check(
        "deadline",
        () -> {
          var answers = watch(client, name, 400);
          expectError(answers::next, Status.Code.DEADLINE_EXCEEDED, "");
        });
    check(
        "cancel",
        () -> {
          Context.CancellableContext context = Context.current().withCancellation();
          context.call(
              () -> {
                var answers = watch(client, name, 10_000);
                context.cancel(null);
                expectError(answers::next, Status.Code.CANCELLED, "");
                return null;
              });
        });
    check(
        "error text",
        () -> {
          expectError(() -> client.acquire(charge("no-such-limit", "", 1)),
              Status.Code.NOT_FOUND, "no-such-limit");
          expectError(() -> client.acquire(charge("wide", "k".repeat(513), 1)),
              Status.Code.INVALID_ARGUMENT, "key");
        });
    channel.shutdownNow().awaitTermination(5, TimeUnit.SECONDS);
    System.exit(failed ? 1 : 0);
  }
}
