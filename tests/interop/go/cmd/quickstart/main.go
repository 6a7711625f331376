// Takes a permit. Arguments: LIMIT KEY. Exit codes: 0 granted, 1 denied, 3 no answer.
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "sluice.test/interop/sluicev1"
)

func main() {
	server := cmp.Or(os.Getenv("SLUICE_SERVER"), "127.0.0.1:7200")
	conn, err := grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err) // the address is malformed
	}
	client := pb.NewRateLimiterClient(conn) // thread-safe; one for the program

	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	answer, err := client.Acquire(ctx, &pb.AcquireRequest{
		Charges: []*pb.Charge{{Limit: os.Args[1], Key: os.Args[2]}},
	})
	if err != nil {
		// Decide what your program does without an answer: go on, or refuse the work.
		fmt.Printf("error: %v: %s\n", status.Code(err), status.Convert(err).Message())
		os.Exit(3)
	}
	if !answer.Granted {
		fmt.Printf("denied; try again in %.0f s\n", answer.RetryAfter.AsDuration().Seconds())
		os.Exit(1)
	}
	fmt.Printf("granted; %d left\n", answer.Charges[0].Remaining)
}
