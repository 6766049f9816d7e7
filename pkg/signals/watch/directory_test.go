package watch

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

// given makes a launcher directory of the VM ns/vm.
func given(t *testing.T) (Directory, string) {
	t.Helper()
	d := Directory{Base: t.TempDir(), Name: "ns_vm", Namespace: "ns", VM: "vm"}
	path := filepath.Join(d.Base, d.Name)
	kit.Must(t, os.Mkdir(path, 0o755))
	return d, path
}

// look must return at once, whatever is in the directory.
func look(t *testing.T, d Directory) View {
	t.Helper()
	type result struct {
		view View
		err  error
	}
	got := make(chan result, 1)
	go func() { v, err := d.Look(); got <- result{v, err} }()
	select {
	case r := <-got:
		kit.Must(t, r.err)
		return r.view
	case <-time.After(10 * time.Second):
		t.Fatal("the look blocks")
		return View{}
	}
}

func TestATriggerThatIsSeenComesWithItsRegistration(t *testing.T) {
	// The shim registers, then asks, while somebody looks all the time.
	for range 300 {
		d, path := given(t)
		go func() {
			for _, name := range []string{signals.FileVM, signals.FileTrigger} {
				temp := filepath.Join(path, "."+name)
				content := `{"version":1,"namespace":"ns","name":"vm","uid":"u1","gracePeriodSeconds":45}`
				if os.WriteFile(temp, []byte(content), 0o644) != nil || os.Rename(temp, filepath.Join(path, name)) != nil {
					return
				}
			}
		}()
		for {
			v := look(t, d)
			if v.Trigger && v.Grace != "45" {
				t.Fatal("a trigger without the registration before it: the grace period would be another one")
			}
			if v.Trigger {
				break
			}
		}
	}
}

func TestAnyRegularFileIsATrigger(t *testing.T) {
	for name, content := range map[string]string{
		"touch": "", "text": "please", "half a JSON": `{"version":1,"ui`, "no uid": `{"version":1}`,
		"another version without uid": `{"version":0,"uid":"x"}`, "an array": `["uid"]`, "too long": string(make([]byte, signals.MaxSize+1)),
	} {
		d, path := given(t)
		kit.Write(t, filepath.Join(path, signals.FileTrigger), content)
		if v := look(t, d); !v.Trigger || v.TriggerUID != "" {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func TestNoDirectoryIsNoErrorAndNotPresent(t *testing.T) {
	d, path := given(t)
	kit.Must(t, os.Remove(path))
	if v := look(t, d); v.Present {
		t.Errorf("%+v", v)
	}
}

func TestADirectoryInThePlaceOfAnotherIsToldFromIt(t *testing.T) {
	d, path := given(t)
	before := look(t, d)
	kit.Must(t, os.Rename(path, path+"-away"))
	kit.Must(t, os.Mkdir(path, 0o755))
	if after := look(t, d); before.ID == (fileID{}) || after.ID == before.ID {
		t.Errorf("%+v, then %+v", before.ID, after.ID)
	}
}

func TestTheLockTellsWhetherTheShimLives(t *testing.T) {
	d, path := given(t)
	vm := filepath.Join(path, signals.FileVM)
	kit.Write(t, vm, `{"version":1,"namespace":"ns","name":"vm","uid":"u1"}`)
	holder := holdLock(t, vm)
	if v := look(t, d); !v.Locked || v.Holder.PID != holder.Process.Pid {
		t.Errorf("held by %d: %+v", holder.Process.Pid, v)
	}
	kit.Must(t, holder.Process.Kill())
	_ = holder.Wait()
	if v := look(t, d); v.Locked || !v.Registered {
		t.Errorf("after the holder was killed: %+v", v)
	}
}

// comeAndGo runs one shim after the other, each with an orderly end.
func comeAndGo(dir string) (code int) {
	for range 3000 {
		s := signals.NewSender(dir, signals.VM{Namespace: "ns", Name: "vm", UID: "u1"})
		if errors.Join(s.Register(), s.Withdraw()) != nil {
			return 1
		}
	}
	return 0
}

func TestAShimThatEndsInOrderIsNeverTakenForKilled(t *testing.T) {
	// Given: shims that register and end in order, all the time.
	d, path := given(t)
	shims := exec.Command(os.Args[0])
	shims.Env = append(os.Environ(), "COME_AND_GO_IN="+path)
	kit.Must(t, shims.Start())
	ended := make(chan error, 1)
	go func() { ended <- shims.Wait() }()
	for held := 0; ; {
		select {
		case err := <-ended:
			kit.Must(t, err)
			if held == 0 {
				t.Error("no shim was ever seen")
			}
			return
		default:
		}
		// When somebody looks at the directory meanwhile.
		v, err := d.Look()
		if err == nil && v.Locked {
			held++
		}
		// Then: the mark of a killed shim is never seen.
		if err == nil && v.Registered && !v.Locked {
			_ = shims.Process.Kill()
			t.Log("the shims end:", <-ended)
			t.Fatalf("vm.json without its lock, after %d looks that saw it: %+v", held, v)
		}
	}
}

func TestALinkInPlaceOfTheDirectoryLeadsNowhere(t *testing.T) {
	d, path := given(t)
	kit.Must(t, os.Remove(path))
	neighbour := filepath.Join(d.Base, "ns_other")
	kit.Must(t, os.Mkdir(neighbour, 0o755))
	kit.Write(t, filepath.Join(neighbour, signals.FileTrigger), "")
	kit.Must(t, os.Symlink("ns_other", path))
	if v, err := d.Look(); err == nil && (v.Present || v.Trigger) {
		t.Errorf("followed: %+v", v)
	}
	if err := d.WriteStatus(grace.Status{UID: "u", Phase: grace.Stopped}); err == nil {
		t.Error("status.json was written through the link")
	}
	info, err := os.Lstat(filepath.Join(neighbour, signals.FileTrigger))
	kit.Must(t, err)
	_ = d.RemoveTrigger(triggerID(info))
	if _, err := os.Stat(filepath.Join(neighbour, signals.FileTrigger)); err != nil {
		t.Error("the neighbour's trigger was removed through the link")
	}
}

// tookOver reports whether any content of vm.json counts.
func tookOver(v View) bool {
	return v.UID != "" || v.Readable || v.Grace != "" || v.Asking != (signals.Asking{})
}

func TestVMFileThatClaimsAnotherVMIsRejectedWhole(t *testing.T) {
	d, path := given(t)
	kit.Write(t, filepath.Join(path, signals.FileVM), `{"version":1,"namespace":"ns","name":"victim","uid":"u1","gracePeriodSeconds":0}`)
	v := look(t, d)
	if tookOver(v) || len(v.Rejected) != 1 || v.Rejected[0].Reason != ReasonVMClaim {
		t.Errorf("%+v", v)
	}
}
