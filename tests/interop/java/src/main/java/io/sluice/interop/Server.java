package io.sluice.interop;

import com.google.protobuf.ByteString;
import com.google.protobuf.Duration;
import io.grpc.InsecureServerCredentials;
import io.grpc.ServerCredentials;
import io.grpc.Status;
import io.grpc.TlsServerCredentials;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import io.sluice.v1.AcquireBatchRequest;
import io.sluice.v1.AcquireBatchResponse;
import io.sluice.v1.AcquireRequest;
import io.sluice.v1.AcquireResponse;
import io.sluice.v1.BucketStatus;
import io.sluice.v1.Charge;
import io.sluice.v1.ChargeStatus;
import io.sluice.v1.QueryRequest;
import io.sluice.v1.QueryResponse;
import io.sluice.v1.RateLimiterGrpc;
import io.sluice.v1.RefundOutcome;
import io.sluice.v1.RefundRequest;
import io.sluice.v1.RefundResponse;
import io.sluice.v1.RefundedCharge;
import io.sluice.v1.Source;
import io.sluice.v1.WatchRequest;
import java.io.File;
import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * A small RateLimiter over grpc-java, for servers.py, which says what it does. Arguments:
 * [CERT_FILE KEY_FILE].
 */
public final class Server extends RateLimiterGrpc.RateLimiterImplBase {
  private static final String SPECIAL = "100% of \"gr\u00f6\u00dfe\":\n\tnone \u2192 %41";

  private record Bucket(String limit, String key) {}

  private final ScheduledExecutorService timers = Executors.newScheduledThreadPool(2);
  private final Map<Bucket, Long> left = new HashMap<>();
  private final Map<ByteString, Optional<Charge>> receipts = new HashMap<>(); // empty: refunded
  private long executed = 0;

  private static Status special(Status.Code code) {
    return code.toStatus().withDescription(SPECIAL);
  }

  private synchronized long remaining(Bucket bucket) {
    return left.getOrDefault(bucket, 10L);
  }

  private synchronized void noteCancelled(String limit) {
    Bucket bucket = new Bucket("cancelled", limit);
    left.put(bucket, remaining(bucket) + 1);
  }

  /** Null: NOT_FOUND. */
  private synchronized AcquireResponse decide(AcquireRequest request) {
    Charge charge = request.getCharges(0);
    if (charge.getLimit().equals("missing")) {
      return null;
    }
    Bucket bucket = new Bucket(charge.getLimit(), charge.getKey());
    boolean load = charge.getLimit().equals("load");
    long permits = charge.hasPermits() ? charge.getPermits() : 1;
    long now = remaining(bucket);
    boolean granted = now >= permits || load;
    var answer = AcquireResponse.newBuilder().setGranted(granted).setSource(Source.SOURCE_STORE);
    if (load) {
      executed++;
    } else if (granted) {
      left.put(bucket, now -= permits);
    } else {
      answer.setRetryAfter(Duration.newBuilder().setNanos(250_000_000));
    }
    if (request.getWantReceipt()) {
      byte[] bytes = new byte[1000];
      for (int i = 1; i < bytes.length; i += 2) {
        bytes[i] = (byte) 0xff;
      }
      ByteString number = ByteString.copyFromUtf8(Integer.toString(receipts.size()));
      answer.setReceipt(ByteString.copyFrom(bytes).concat(number));
      receipts.put(answer.getReceipt(), Optional.of(charge));
    }
    return answer
        .addCharges(ChargeStatus.newBuilder().setRemaining(now).setCapacity(10))
        .build();
  }

  private void answer(AcquireRequest request, ServerCallStreamObserver<AcquireResponse> caller) {
    if (caller.isCancelled()) {
      return;
    }
    AcquireResponse decision = decide(request);
    if (decision == null) {
      caller.onError(special(Status.Code.NOT_FOUND).asException());
    } else {
      caller.onNext(decision);
      caller.onCompleted();
    }
  }

  @Override
  public void acquire(AcquireRequest request, StreamObserver<AcquireResponse> observer) {
    var caller = (ServerCallStreamObserver<AcquireResponse>) observer;
    String limit = request.getCharges(0).getLimit();
    caller.setOnCancelHandler(() -> noteCancelled(limit));
    switch (limit) {
      case "hang" -> {}
      case "load" -> timers.schedule(() -> answer(request, caller), 20, TimeUnit.MILLISECONDS);
      default ->
          timers.schedule(
              () -> answer(request, caller),
              request.getHold() ? request.getMaxWait().getNanos() : 0,
              TimeUnit.NANOSECONDS);
    }
  }

  private AcquireBatchResponse decideAll(AcquireBatchRequest batch) {
    var answer = AcquireBatchResponse.newBuilder();
    for (AcquireRequest one : batch.getAcquisitionsList()) {
      AcquireResponse decision = decide(one);
      var result = answer.addResultsBuilder();
      if (decision != null) {
        result.setResponse(decision);
      } else {
        result.getErrorBuilder().setCode(Status.Code.NOT_FOUND.value()).setMessage(SPECIAL);
      }
    }
    return answer.build();
  }

  @Override
  public void acquireBatch(
      AcquireBatchRequest batch, StreamObserver<AcquireBatchResponse> caller) {
    caller.onNext(decideAll(batch));
    caller.onCompleted();
  }

  @Override
  public StreamObserver<AcquireBatchRequest> acquireStream(
      StreamObserver<AcquireBatchResponse> caller) {
    return new StreamObserver<>() {
      @Override
      public void onNext(AcquireBatchRequest batch) {
        caller.onNext(decideAll(batch));
      }

      @Override
      public void onError(Throwable fault) {}

      @Override
      public void onCompleted() {
        caller.onCompleted();
      }
    };
  }

  private QueryResponse query(List<QueryRequest.Bucket> buckets) {
    var answer = QueryResponse.newBuilder();
    for (var bucket : buckets) {
      answer.addBuckets(
          BucketStatus.newBuilder()
              .setLimit(bucket.getLimit())
              .setKey(bucket.getKey())
              .setRemaining(remaining(new Bucket(bucket.getLimit(), bucket.getKey())))
              .setCapacity(10));
    }
    return answer.build();
  }

  @Override
  public void query(QueryRequest request, StreamObserver<QueryResponse> caller) {
    caller.onNext(query(request.getBucketsList()));
    caller.onCompleted();
  }

  @Override
  public void watch(WatchRequest request, StreamObserver<QueryResponse> observer) {
    var caller = (ServerCallStreamObserver<QueryResponse>) observer;
    String limit = request.getBuckets(0).getLimit();
    caller.setOnCancelHandler(() -> noteCancelled(limit));
    QueryResponse first = query(request.getBucketsList());
    caller.onNext(first);
    if (limit.equals("breaks")) {
      caller.onError(special(Status.Code.ABORTED).asException());
    } else {
      follow(request, caller, first);
    }
  }

  private void follow(
      WatchRequest request, ServerCallStreamObserver<QueryResponse> caller, QueryResponse last) {
    if (caller.isCancelled()) {
      return;
    }
    QueryResponse now = query(request.getBucketsList());
    if (!now.equals(last)) {
      caller.onNext(now);
    }
    timers.schedule(() -> follow(request, caller, now), 5, TimeUnit.MILLISECONDS);
  }

  @Override
  public synchronized void refund(RefundRequest request, StreamObserver<RefundResponse> caller) {
    Optional<Charge> charge = receipts.get(request.getReceipt());
    if (charge == null) {
      caller.onError(special(Status.Code.INVALID_ARGUMENT).asException());
      return;
    }
    var answer =
        RefundResponse.newBuilder().setOutcome(RefundOutcome.REFUND_OUTCOME_ALREADY_REFUNDED);
    if (charge.isPresent()) {
      receipts.put(request.getReceipt(), Optional.empty());
      left.merge(new Bucket(charge.get().getLimit(), charge.get().getKey()), 1L, Long::sum);
      answer
          .setOutcome(RefundOutcome.REFUND_OUTCOME_REFUNDED)
          .addCharges(
              RefundedCharge.newBuilder()
                  .setLimit(charge.get().getLimit())
                  .setKey(charge.get().getKey())
                  .setPermits(1));
    }
    caller.onNext(answer.build());
    caller.onCompleted();
  }

  /** Gracefully: calls that are open end first. */
  private static void stop(io.grpc.Server server, Server service) {
    try {
      server.shutdown().awaitTermination();
    } catch (InterruptedException ended) {
      Thread.currentThread().interrupt();
    }
    synchronized (service) {
      System.out.println("executed=" + service.executed);
    }
  }

  public static void main(String[] arguments) throws Exception {
    ServerCredentials credentials = InsecureServerCredentials.create();
    if (arguments.length > 1) {
      credentials = TlsServerCredentials.create(new File(arguments[0]), new File(arguments[1]));
    }
    Server service = new Server();
    io.grpc.Server server =
        NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", 0), credentials)
            .addService(service)
            .build()
            .start();
    System.out.println("ready data=127.0.0.1:" + server.getPort());
    Runtime.getRuntime().addShutdownHook(new Thread(() -> stop(server, service)));
    server.awaitTermination();
  }
}
