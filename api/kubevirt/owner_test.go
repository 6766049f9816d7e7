package kubevirt

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/launcherpod"
)

func TestWhatOfAVMISaysWhosePodsAre(t *testing.T) {
	at := time.Unix(100, 0)
	is := VirtualMachineInstanceStatus{Phase: VMIFailed, Launcher: &Launcher{PodUID: "p"}}
	want := launcherpod.Owner{UID: "u", Launcher: "p", Ended: true, DeletedAt: at.UTC()}
	if got := OwnerOf("u", &metav1.Time{Time: at}, &is); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
