// Command mock-csi is a CSI driver that attaches and detaches nothing, for the
// external-attacher: mock-csi SOCKET NAME DURATION. A volume whose handle contains
// "slow" is detached after that duration, one with "stuck" never.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mock-csi:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("usage: mock-csi SOCKET NAME DURATION")
	}
	slowly, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", args[0])
	if err != nil {
		return err
	}
	d := &driver{name: args[1], slowly: slowly}
	s := grpc.NewServer()
	csi.RegisterIdentityServer(s, d)
	csi.RegisterControllerServer(s, d)
	return s.Serve(l)
}

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer

	name   string
	slowly time.Duration
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{Service: service}}}}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	rpc := &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}}}}, nil
}

func (d *driver) ControllerPublishVolume(context.Context, *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	return &csi.ControllerPublishVolumeResponse{}, nil
}

func (d *driver) ControllerUnpublishVolume(ctx context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	switch {
	case strings.Contains(r.VolumeId, "stuck"):
		return nil, status.Error(codes.Internal, "stuck")
	case strings.Contains(r.VolumeId, "slow"):
		select {
		case <-time.After(d.slowly):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}
