package cluster

import (
	"context"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	leaseName     = "vmgrace-cluster-controller"
	leaseDuration = 15 * time.Second
	// renewDeadline is after how much time without an answer a leader ends. What it last wrote is up to
	// renewEach older: together that is well below leaseDuration.
	renewDeadline = 8 * time.Second
	// retryPeriod is how often the Lease is looked at: other replicas see its last renewal late, and its end.
	// The library's 2 s would add several seconds to a failover.
	retryPeriod = 250 * time.Millisecond
	// renewEach is how often the leader writes it. The library writes each retryPeriod, which would be most
	// of what a controller at rest does.
	renewEach = 2 * time.Second
)

// lease is the Lease of a replica. Renewals that follow the last one within renewEach are not
// written. It belongs to the one elector that uses it.
type lease struct {
	resourcelock.Interface

	written resourcelock.LeaderElectionRecord // the last one, as it was written
	at      time.Time
}

// newLock returns the Lease as the library writes it.
func newLock(cfg *rest.Config, namespace string) (*resourcelock.LeaseLock, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name of this replica: %w", err)
	}
	cfg = rest.AddUserAgent(rest.CopyConfig(cfg), "leader-election")
	cfg.Timeout = renewDeadline / 2 // a request that hangs leaves time for another one
	api, err := coordinationclient.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("the Lease %s/%s: %w", namespace, leaseName, err)
	}
	return &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: leaseName}, Client: api,
		LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
	}, nil
}

// Update implements resourcelock.Interface.
func (l *lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	renews := l.written
	renews.RenewTime = record.RenewTime
	if record == renews && time.Since(l.at) < renewEach {
		return nil
	}
	begun := time.Now() // the Lease counts from when it was asked for
	if err := l.Interface.Update(ctx, record); err != nil {
		l.at = time.Time{}
		return err
	}
	l.written, l.at = record, begun
	return nil
}
