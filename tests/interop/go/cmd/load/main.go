// Calls Acquire on several connections and counts failed calls.
// Arguments: ADDRESS DURATION. Prints "calls=N failed=N" and the first errors.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "sluice.test/interop/sluicev1"
)

func main() {
	duration, err := time.ParseDuration(os.Args[2])
	if err != nil {
		panic(err)
	}
	var calls, failed atomic.Int64
	var workers sync.WaitGroup
	end := time.Now().Add(duration)
	for c := 0; c < 4; c++ {
		conn, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			panic(err)
		}
		client := pb.NewRateLimiterClient(conn)
		for w := 0; w < 8; w++ {
			workers.Add(1)
			go func(key string) {
				defer workers.Done()
				for time.Now().Before(end) {
					// The proxy may not be listening yet.
					ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
					_, err := client.Acquire(ctx, &pb.AcquireRequest{Charges: []*pb.Charge{{Limit: "load", Key: key}}},
						grpc.WaitForReady(calls.Load() == 0))
					cancel()
					calls.Add(1)
					if err != nil && failed.Add(1) <= 10 {
						fmt.Println(err)
					}
				}
			}(fmt.Sprintf("key-%d-%d", c, w))
		}
	}
	workers.Wait()
	fmt.Printf("calls=%d failed=%d\n", calls.Load(), failed.Load())
}
