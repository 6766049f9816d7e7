//go:build !unit

package gracecache

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/kit"
)

// session is one agent's life on a traced disk.
type session struct {
	t      *testing.T
	tracer *tracer
	store  *Store
}

func newSession(t *testing.T, prepare func(*tracer)) *session {
	t.Helper()
	tr := newTracer(t.TempDir())
	prepare(tr)
	s := &session{t: t, tracer: tr}
	store, err := open(durable.Disk{FS: tr}, filepath.Join(tr.root, "state"))
	if store == nil {
		return s // a step that failed; there is nothing more to lose
	}
	if err != nil && tr.failing < 0 {
		t.Fatal(err)
	}
	s.store = store
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// retry does a call until it is acknowledged, as the agent does.
func (s *session) retry(domain string, want *grace.Record, do func() error) {
	for range 2 {
		err := s.tracer.call(domain, want, do)
		if err == nil {
			return
		}
		if _, err := s.store.Retake(); err != nil && s.tracer.failing < 0 {
			s.t.Error(err)
		}
		if s.tracer.failing < 0 {
			s.t.Errorf("%s: %v", domain, err)
			return
		}
	}
}

func (s *session) put(rec grace.Record) {
	s.retry(rec.Domain(), &rec, func() error { return s.store.Put(rec) })
}

func (s *session) delete(domain string) {
	s.retry(domain, nil, func() error { return s.store.Delete(domain) })
}

// life plays the life of one VM, twice.
func (s *session) life(name string) {
	running, ending := named(name), shutdownRecord()
	ending.Name = name
	signalled := ending
	signalled.Shutdown.Signalled = true
	for range 2 {
		s.put(running)
		s.put(ending)
		s.put(signalled)
		s.delete(running.Domain())
	}
}

// enough bounds the problems to show: without a fsync there can be endless states.
const enough = 3

// powerLosses checks every state that every moment of the trace can leave, and
// returns how many there were and what was wrong with them.
func (s *session) powerLosses() (count int, wrong map[string]int) {
	s.t.Helper()
	wrong = map[string]int{}
	root := kit.Tmpfs(s.t, "size=64k")
	seen := map[[32]byte]bool{}
	allowed := map[string][]*grace.Record{} // by domain; nil: no record
	for n := s.tracer.begin; n <= len(s.tracer.trace) && len(wrong) <= enough; n++ {
		if n > 0 {
			promise(allowed, s.tracer.trace[n-1])
		}
		states(s.tracer.trace, n, func(files map[string][]byte) {
			key := stateKey(files, allowed)
			if seen[key] || len(wrong) > enough {
				return
			}
			seen[key] = true
			count++
			for _, problem := range afterPowerLoss(s.t, root, files, allowed) {
				wrong[problem]++
			}
		})
	}
	return count, wrong
}

// promise tracks what the caller knows: a call that has begun may have happened, an
// acknowledged one has.
func promise(allowed map[string][]*grace.Record, e event) {
	switch e.what {
	case "begin":
		if allowed[e.path] == nil {
			allowed[e.path] = []*grace.Record{nil}
		}
		allowed[e.path] = append(slices.Clone(allowed[e.path]), e.want)
	case "acked":
		allowed[e.path] = []*grace.Record{e.want}
	}
}

func stateKey(files map[string][]byte, allowed map[string][]*grace.Record) [32]byte {
	h := sha256.New()
	for _, path := range slices.Sorted(maps.Keys(files)) {
		name := path
		if i := strings.Index(path, ".tmp-"); i >= 0 {
			name = path[:i] + ".tmp" // which one it is does not matter
		}
		fmt.Fprintf(h, "%s %d %x\n", name, len(files[path]), files[path])
	}
	for _, domain := range slices.Sorted(maps.Keys(allowed)) {
		fmt.Fprintf(h, "%s", domain)
		for _, rec := range allowed[domain] {
			fmt.Fprintf(h, " %+v", rec)
		}
	}
	return [32]byte(h.Sum(nil))
}

// afterPowerLoss starts the next agent on the remaining files.
func afterPowerLoss(t *testing.T, root string, files map[string][]byte, allowed map[string][]*grace.Record) (wrong []string) {
	t.Helper()
	dir := filepath.Join(root, "state")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if path == "state" {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			continue
		}
		write(t, root, path, files[path])
	}
	s, err := open(durable.Real(), dir)
	if err != nil {
		return []string{fmt.Sprintf("does not open: %v", err)}
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	loaded, err := s.Load()
	if err != nil {
		return []string{fmt.Sprintf("does not load: %v", err)}
	}
	for _, q := range loaded.Quarantined {
		kept, err := os.ReadFile(filepath.Join(dir, q.MovedTo))
		if q.Name != badName || err != nil || string(kept) != badContent {
			wrong = append(wrong, fmt.Sprintf("quarantined %s: %v", q.Name, q.Reason))
		}
	}
	found := map[string]*grace.Record{}
	for i := range loaded.Records {
		found[loaded.Records[i].Domain()] = &loaded.Records[i]
	}
	for domain := range found {
		if allowed[domain] == nil {
			wrong = append(wrong, "a record that nobody put: "+domain)
		}
	}
	for domain, may := range allowed {
		got := found[domain]
		if !slices.ContainsFunc(may, func(want *grace.Record) bool { return want == got || want != nil && got != nil && *want == *got }) {
			wrong = append(wrong, fmt.Sprintf("%s: %s, want %s", domain, phases(got), phases(may...)))
		}
	}
	for _, name := range names(t, dir) {
		if durable.IsTemp(name) || strings.HasPrefix(name, ".probe") {
			wrong = append(wrong, "left over: "+name)
		}
	}
	return wrong
}

func phases(recs ...*grace.Record) string {
	var words []string
	for _, r := range recs {
		switch {
		case r == nil:
			words = append(words, "no record")
		case r.Shutdown.Signalled:
			words = append(words, "signalled")
		case r.ShuttingDown():
			words = append(words, "shutting down")
		default:
			words = append(words, "running")
		}
	}
	return strings.Join(words, " or ")
}

const badName, badContent = "shop_bad.json", `{"version": 1, "checksum`

func noBase(*tracer) {}

// used makes a state directory that earlier agents have left behind.
func used(t *testing.T, tr *tracer) {
	t.Helper()
	dir := filepath.Join(tr.root, "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	tr.trace = append(tr.trace, event{what: "link", path: "state", to: &inode{dir: true}}, event{what: "dirsynced", path: ".", from: 1})
	for name, data := range map[string]string{badName: badContent, ".tmp-old": "{", ".probe": ""} {
		write(t, dir, name, []byte(data))
		tr.holds("state/"+name, []byte(data))
	}
	tr.begin = len(tr.trace)
}

func wantNothingWrong(t *testing.T, s *session) int {
	t.Helper()
	count, wrong := s.powerLosses()
	for problem, times := range wrong {
		t.Errorf("%d of %d states: %s", times, count, problem)
	}
	return count
}

func TestPowerLossAtAnyMomentKeepsWhatWasAcknowledged(t *testing.T) {
	s := newSession(t, noBase)
	s.life("a")
	s.life("b")
	t.Logf("%d states after %d events", wantNothingWrong(t, s), len(s.tracer.trace))
}

func TestPowerLossWhileThePastIsClearedAwayHarmsNoRecord(t *testing.T) {
	s := newSession(t, func(tr *tracer) { used(t, tr) })
	if loaded := load(t, s.store); len(loaded.Quarantined) != 1 {
		t.Fatalf("quarantined: %+v", loaded.Quarantined)
	}
	s.life("a")
	t.Logf("%d states after %d events", wantNothingWrong(t, s), len(s.tracer.trace))
}

func TestPowerLossWhileManyVMsAreWrittenKeepsWhatWasAcknowledged(t *testing.T) {
	for range 3 { // each time they mingle in another way
		s := newSession(t, noBase)
		var vms sync.WaitGroup
		for i := range 2 {
			vms.Go(func() { s.life(fmt.Sprintf("vm-%d", i)) })
		}
		vms.Wait()
		t.Logf("%d states after %d events", wantNothingWrong(t, s), len(s.tracer.trace))
	}
}

func TestPowerLossAfterAnyStepThatFailedKeepsWhatWasAcknowledged(t *testing.T) {
	total := 0
	for failing := 0; ; failing++ {
		s := newSession(t, func(tr *tracer) { tr.failing = failing })
		if s.store == nil {
			continue
		}
		s.put(named("a"))
		s.put(named("a"))
		s.put(shutdownRecord())
		s.delete("shop_a")
		total += wantNothingWrong(t, s)
		if s.tracer.tried <= failing {
			t.Logf("%d states, %d steps that failed", total, failing)
			return
		}
	}
}

// The checks above are worth something only if they see a missing fsync.
func TestPowerLossOnADiskThatForgetsOneKindOfFsyncIsNoticed(t *testing.T) {
	for _, forgets := range []string{"file", "state", "."} {
		s := newSession(t, func(tr *tracer) { tr.forgets = forgets })
		s.life("a")
		if count, wrong := s.powerLosses(); len(wrong) == 0 {
			t.Errorf("without the fsync of %q: nothing wrong in %d states", forgets, count)
		} else {
			t.Logf("without the fsync of %q: %v", forgets, wrong)
		}
	}
}
