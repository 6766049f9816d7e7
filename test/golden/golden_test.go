package golden

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/gracecache"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

var into = flag.String("write", "", "write what this version writes into this directory, and test nothing")

func TestMain(m *testing.M) {
	flag.Parse()
	if *into == "" {
		os.Exit(m.Run())
	}
	if err := write(*into); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// next is the directory of what the sources write now.
const next = "next"

func TestWhatEachReleaseHasWrittenMeansTheSameToday(t *testing.T) {
	dirs, err := filepath.Glob("v*.*.*")
	kit.Must(t, err)
	if len(dirs) == 0 {
		t.Fatal("no release")
	}
	for _, dir := range append(dirs, next) {
		t.Run(dir, func(t *testing.T) {
			want, err := os.ReadFile(filepath.Join(dir, "means"))
			kit.Must(t, err)
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(read(t, dir).String(), "\n")); diff != "" {
				t.Errorf("-meant +read:\n%s", diff)
			}
		})
	}
}

func TestTheReleaseThatTheManifestsRunHasItsDirectory(t *testing.T) {
	text, err := os.ReadFile("../../deploy/version/kustomization.yaml")
	kit.Must(t, err)
	_, tag, _ := strings.Cut(string(text), "newTag: ")
	tag, _, _ = strings.Cut(tag, "\n")
	if _, err := os.Stat(filepath.Join(tag, "means")); err != nil {
		t.Errorf("make golden VERSION=%s: %v", tag, err)
	}
}

// What is written otherwise than before is seen in a change of next.
func TestNextIsWhatIsWrittenToday(t *testing.T) {
	dir := t.TempDir()
	kit.Must(t, write(dir))
	if diff := cmp.Diff(files(t, next), files(t, dir)); diff != "" {
		t.Errorf("make golden, if that is meant. -next +today:\n%s", diff)
	}
}

// files returns the content of all files in a directory.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	kit.Must(t, fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, path))
		all[path] = string(content)
		return err
	}))
	return all
}

// read reads all of a release as the programs do, and returns what it means.
func read(t *testing.T, dir string) (m means) {
	t.Helper()
	loaded, err := gracecache.Read(filepath.Join(dir, "records"))
	kit.Must(t, err)
	for _, q := range loaded.Quarantined {
		t.Errorf("%s is quarantined: %v", q.Name, q.Reason)
	}
	for _, rec := range loaded.Records {
		m.of("records/"+rec.Domain()+".json", rec)
	}
	scheme := runtime.NewScheme()
	kit.Must(t, kubevirt.AddToScheme(scheme))
	kit.Must(t, v1alpha1.AddToScheme(scheme))
	client := serializer.NewCodecFactory(scheme).UniversalDeserializer()
	for path, content := range files(t, dir) {
		switch name := filepath.Base(path); {
		case strings.HasPrefix(path, "objects/"):
			object, _, err := client.Decode([]byte(content), nil, nil)
			kit.Must(t, err)
			m.of(path, object)
		case name == signals.FileVM:
			vm, err := signals.ParseVM([]byte(content))
			kit.Must(t, err)
			m.of(path, vm)
		case name == signals.FileTrigger:
			m.of(path, named{signals.TriggerUID([]byte(content))})
		case name == signals.FileStatus:
			m.of(path, answered(t, content))
		}
	}
	return m
}

// answered returns what a launcher takes from a status.json that the agent writes while it is there.
func answered(t *testing.T, status string) (a answer) {
	t.Helper()
	dir := t.TempDir()
	sender := signals.NewSender(dir, signals.VM{Namespace: "shop", Name: "db-0.prod", UID: uid})
	kit.Must(t, sender.Register())
	kit.Write(t, filepath.Join(dir, signals.FileStatus), status)
	end, err := sender.Ended()
	kit.Must(t, err)
	a.Stopped, a.Moved, a.End = end.Stopped, end.Outcome == grace.Migrated, end.End
	a.Requested, _, err = sender.Requested()
	kit.Must(t, err)
	kit.Must(t, sender.Withdraw())
	return a
}
