// A management server of go-control-plane, for xds.py.
//
// Reads commands from stdin, a JSON object in each line:
//
//	{"version": "1", "configs": [...]}  serves these RateLimitConfigs
//	{"drop": true}                      ends all connections, and listens again
//
// Writes events to stdout, a JSON object in each line: {"listening": "127.0.0.1:PORT"}, {"open": 1},
// {"closed": 1}, and for each request {"stream": 1, "node": "n", "version": "1", "nonce": "2",
// "error": "..."}.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"sync"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
)

const node = "test-node"

type command struct {
	Version string
	Configs []json.RawMessage
	Drop    bool
}

var output sync.Mutex

func tell(event map[string]any) {
	line, err := json.Marshal(event)
	if err != nil {
		log.Fatal(err)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
}

func listen(snapshots cache.SnapshotCache, address string) (*grpc.Server, string) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	callbacks := server.CallbackFuncs{
		StreamOpenFunc: func(_ context.Context, stream int64, _ string) error {
			tell(map[string]any{"open": stream})
			return nil
		},
		StreamClosedFunc: func(stream int64, _ *core.Node) { tell(map[string]any{"closed": stream}) },
		StreamRequestFunc: func(stream int64, request *discovery.DiscoveryRequest) error {
			tell(map[string]any{
				"stream": stream, "node": request.GetNode().GetId(), "version": request.VersionInfo,
				"nonce": request.ResponseNonce, "error": request.GetErrorDetail().GetMessage()})
			return nil
		},
	}
	management := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(
		management, server.NewServer(context.Background(), snapshots, callbacks))
	go management.Serve(listener)
	return management, listener.Addr().String()
}

func set(snapshots cache.SnapshotCache, wanted command) error {
	var configs []types.Resource
	for _, text := range wanted.Configs {
		config := &ratelimit.RateLimitConfig{}
		if err := protojson.Unmarshal(text, config); err != nil {
			return err
		}
		configs = append(configs, config)
	}
	snapshot, err := cache.NewSnapshot(
		wanted.Version, map[resource.Type][]types.Resource{resource.RateLimitConfigType: configs})
	if err != nil {
		return err
	}
	return snapshots.SetSnapshot(context.Background(), node, snapshot)
}

func main() {
	snapshots := cache.NewSnapshotCache(true, cache.IDHash{}, nil)
	management, address := listen(snapshots, "127.0.0.1:0")
	tell(map[string]any{"listening": address})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var wanted command
		if err := json.Unmarshal(lines.Bytes(), &wanted); err != nil {
			log.Fatal(err)
		}
		if wanted.Drop {
			management.Stop()
			management, _ = listen(snapshots, address)
		} else if err := set(snapshots, wanted); err != nil {
			log.Fatal(err)
		}
	}
}
