package io.sluice.interop;

import io.grpc.ManagedChannelBuilder;
import io.grpc.StatusRuntimeException;
import io.sluice.v1.AcquireRequest;
import io.sluice.v1.Charge;
import io.sluice.v1.RateLimiterGrpc;
import java.util.concurrent.TimeUnit;

/** Takes a permit. Arguments: LIMIT KEY. Exit codes: 0 granted, 1 denied, 3 no answer. */
public final class Quickstart {
  public static void main(String[] arguments) {
    String server = System.getenv().getOrDefault("SLUICE_SERVER", "127.0.0.1:7200");
    var channel = ManagedChannelBuilder.forTarget(server).usePlaintext().build();
    var client = RateLimiterGrpc.newBlockingStub(channel); // thread-safe; one for the program
    var request =
        AcquireRequest.newBuilder()
            .addCharges(Charge.newBuilder().setLimit(arguments[0]).setKey(arguments[1]))
            .build();
    try {
      var answer = client.withDeadlineAfter(1, TimeUnit.SECONDS).acquire(request);
      if (answer.getGranted()) {
        System.out.println("granted; " + answer.getCharges(0).getRemaining() + " left");
        System.exit(0);
      }
      var wait = answer.getRetryAfter();
      System.out.printf("denied; try again in %.0f s%n", wait.getSeconds() + wait.getNanos() / 1e9);
      System.exit(1);
    } catch (StatusRuntimeException error) {
      // Decide what your program does without an answer: go on, or refuse the work.
      var status = error.getStatus();
      System.out.println("error: " + status.getCode() + ": " + status.getDescription());
      System.exit(3);
    }
  }
}
