// The interop scenarios with grpc-go. Arguments: ADDRESS [CA_FILE].
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "sluice.test/interop/sluicev1"
)

var failed bool

func check(name string, run func() error) {
	if err := run(); err != nil {
		failed = true
		fmt.Printf("FAILED %s: %v\n", name, err)
		return
	}
	fmt.Printf("ok %s\n", name)
}

func charge(limit, key string, permits uint64) *pb.AcquireRequest {
	return &pb.AcquireRequest{Charges: []*pb.Charge{{Limit: limit, Key: key, Permits: &permits}}}
}

func wantError(err error, code codes.Code, text string) error {
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		return fmt.Errorf("want %v with %q, got %v", code, text, err)
	}
	return nil
}

func main() {
	creds := insecure.NewCredentials()
	prefix := "go"
	if len(os.Args) > 2 {
		var err error
		if creds, err = credentials.NewClientTLSFromFile(os.Args[2], "localhost"); err != nil {
			panic(err)
		}
		prefix = "go-tls"
	}
	conn, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(creds))
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	client := pb.NewRateLimiterClient(conn)
	ctx, cancelAll := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancelAll()

	check("unary", func() error {
		first, err := client.Acquire(ctx, charge("hourly", prefix+"-unary", 3))
		if err != nil {
			return err
		}
		if !first.Granted || first.Charges[0].Remaining != 0 || first.Charges[0].Capacity != 3 {
			return fmt.Errorf("3 of 3 permits: %v", first)
		}
		second, err := client.Acquire(ctx, charge("hourly", prefix+"-unary", 1))
		if err != nil {
			return err
		}
		if second.Granted || second.RetryAfter.AsDuration() <= 0 {
			return fmt.Errorf("a fourth permit: %v", second)
		}
		return nil
	})
	check("batch", func() error {
		answer, err := client.AcquireBatch(ctx, &pb.AcquireBatchRequest{Acquisitions: []*pb.AcquireRequest{
			charge("wide", prefix+"-batch", 1), charge("no-such-limit", "", 1), charge("wide", prefix+"-batch", 2)}})
		if err != nil {
			return err
		}
		r := answer.Results
		if len(r) != 3 || !r[0].GetResponse().GetGranted() || r[1].GetError().GetCode() != int32(codes.NotFound) ||
			!strings.Contains(r[1].GetError().GetMessage(), "no-such-limit") || r[2].GetResponse().GetCharges()[0].Remaining != 997 {
			return fmt.Errorf("%v", answer)
		}
		return nil
	})
	check("stream", func() error {
		stream, err := client.AcquireStream(ctx)
		if err != nil {
			return err
		}
		for i := 0; i < 10; i++ {
			batch := &pb.AcquireBatchRequest{}
			for j := 0; j < 5; j++ {
				batch.Acquisitions = append(batch.Acquisitions, charge("wide", prefix+"-stream", 1))
			}
			if err := stream.Send(batch); err != nil {
				return err
			}
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
		remaining := int64(1000)
		for {
			answer, err := stream.Recv()
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
			for _, result := range answer.Results {
				remaining--
				if got := result.GetResponse().GetCharges()[0].Remaining; got != remaining {
					return fmt.Errorf("want %d left, got %d", remaining, got)
				}
			}
		}
		if remaining != 950 {
			return fmt.Errorf("answers are missing: %d left", remaining)
		}
		return nil
	})
	watch := func(ctx context.Context) (pb.RateLimiter_WatchClient, error) {
		stream, err := client.Watch(ctx, &pb.WatchRequest{Buckets: []*pb.QueryRequest_Bucket{{Limit: "hourly", Key: prefix + "-watch"}}})
		if err != nil {
			return nil, err
		}
		answer, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if answer.Buckets[0].Remaining != 3 {
			return nil, fmt.Errorf("%v", answer)
		}
		return stream, nil
	}
	check("deadline", func() error {
		short, cancel := context.WithTimeout(ctx, 400*time.Millisecond)
		defer cancel()
		stream, err := watch(short)
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return wantError(err, codes.DeadlineExceeded, "")
	})
	check("cancel", func() error {
		cancelled, cancel := context.WithCancel(ctx)
		stream, err := watch(cancelled)
		if err != nil {
			cancel()
			return err
		}
		cancel()
		_, err = stream.Recv()
		return wantError(err, codes.Canceled, "")
	})
	check("error text", func() error {
		_, err := client.Acquire(ctx, charge("no-such-limit", "", 1))
		if err := wantError(err, codes.NotFound, "no-such-limit"); err != nil {
			return err
		}
		_, err = client.Acquire(ctx, charge("wide", strings.Repeat("k", 513), 1))
		return wantError(err, codes.InvalidArgument, "key")
	})
	if failed {
		os.Exit(1)
	}
}
