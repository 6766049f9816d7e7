package cluster_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/vmgrace/vmgrace/test/cluster"
)

func TestNothingOutlivesAnAPIServer(t *testing.T) {
	defer goleak.VerifyNone(t)
	a, err := cluster.StartAPI(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Freeze(); err != nil {
		t.Fatal(err)
	}

	if err := a.Close(); err != nil {
		t.Fatal(err)
	}

	if a.Ready(t.Context()) {
		t.Error("the server still answers")
	}
	if _, err := os.Stat(a.Dir); !os.IsNotExist(err) {
		t.Errorf("%s is left over: %v", a.Dir, err)
	}
}
