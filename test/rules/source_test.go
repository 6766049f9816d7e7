package rules

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// source is a parsed file of the project.
type source struct {
	path string // path below the module's root
	pkg  pkg
	fset *token.FileSet
	file *ast.File
	text []byte
}

func (s source) test() bool { return strings.HasSuffix(s.path, "_test.go") }

func (s source) at(n ast.Node) token.Position { return s.fset.Position(n.Pos()) }

func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	for _, p := range list(t, "./...") {
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.TestGoFiles, p.XTestGoFiles) {
			full := filepath.Join(p.Dir, name)
			text, err := os.ReadFile(full)
			if err != nil {
				t.Fatal(err)
			}
			s := source{path: filepath.Join(p.short(), name), pkg: p, fset: token.NewFileSet(), text: text}
			if s.file, err = parser.ParseFile(s.fset, s.path, text, parser.ParseComments); err != nil {
				t.Fatal(err)
			}
			all = append(all, s)
		}
	}
	if len(all) < 10 {
		t.Fatalf("only %d files found", len(all))
	}
	return all
}

func TestFilesAreShort(t *testing.T) {
	for _, s := range sources(t) {
		limit := 300
		switch {
		case ast.IsGenerated(s.file):
			continue
		case s.test():
			limit = 500
		case s.file.Name.Name == "main" && strings.HasPrefix(s.path, "cmd/"):
			limit = 80
		}
		if lines := bytes.Count(s.text, []byte("\n")); lines > limit {
			t.Errorf("%s has %d lines, more than %d", s.path, lines, limit)
		}
	}
}

func TestEveryPackageExplainsItself(t *testing.T) {
	for _, p := range list(t, "./...") {
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment", p.short())
		}
		if base := filepath.Base(p.ImportPath); slices.Contains([]string{"util", "utils", "common", "helpers", "misc"}, base) {
			t.Errorf("%s: a name that says nothing", p.short())
		}
	}
}

func TestInterfacesAreSmall(t *testing.T) {
	const limit = 6
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			if i, ok := n.(*ast.InterfaceType); ok && i.Methods.NumFields() > limit {
				t.Errorf("%v: an interface of %d methods, more than %d", s.at(n), i.Methods.NumFields(), limit)
			}
			return true
		})
	}
}

// Given the core, then it does not read the clock: the code around it reads the clock and
// passes the time in.
func TestTheCoreReadsNoClock(t *testing.T) {
	clock := []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "NewTimer", "NewTicker", "Tick"}
	for _, s := range sources(t) {
		if !below(s.pkg.short(), "pkg/grace") && !below(s.pkg.short(), "internal/rules") && s.pkg.short() != "api/launcherpod/status" || s.test() {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clock, sel.Sel.Name) {
				t.Errorf("%v: the core reads the clock by time.%s", s.at(n), sel.Sel.Name)
			}
			return true
		})
	}
}

// Given the code that decides about VMs, then it reads CLOCK_MONOTONIC, through
// agent.Clock, because the wall clock jumps. The other uses of package time either measure
// a duration, for which Go uses its monotonic clock, or give a time to people. A jump that
// counted would kill a guest too early or too late.
func TestTheWallClockDecidesNothing(t *testing.T) {
	allowed := []string{
		"internal/node/clock.go",            // agent.Clock itself
		"internal/shim/shim.go",             // the trigger's time, which no code uses
		"internal/shim/process.go",          // the age of a file
		"internal/shim/ask.go",              // how long a request may take
		"pkg/hypervisor/inpod/vm.go",        // how often it checks claims
		"pkg/hypervisor/inpod/mover.go",     // how long a migration took
		"pkg/hypervisor/inpod/request.go",   // how old a launcher's answer is
		"pkg/hypervisor/libvirt/events.go",  // how long a connection lasted
		"pkg/hypervisor/libvirt/qemulog.go", // finds the run in QEMU's log, for the outcome
		"test/fake/fake.go",                 // for tests
		"test/drivertest/drivertest.go",
		// These bound connections and the lives of certificates, and measure migrations.
		// Nothing that happens to a guest depends on them.
		"internal/node/migrate/identity.go", "internal/node/migrate/link.go", "internal/node/migrate/side.go",
		"internal/node/migrate/source.go", "internal/node/migrate/sending.go", "internal/node/migrate/target.go",
		"internal/node/migrate/launcher.go", "internal/node/migrate/relay.go", "internal/node/migrate/messages.go", "internal/node/migrate/refusals.go", "internal/node/migrate/uuid.go",
		"internal/node/kube/migrations.go", // the time of a phase, for people
		"internal/node/kube/migratable.go", // the times of a condition, for people
		"internal/node/kube/shutdown.go",   // likewise
	}
	for _, s := range sources(t) {
		// The API server's times are wall clock times, so these packages use it.
		if s.test() || strings.HasPrefix(s.path, "test/") || strings.HasPrefix(s.path, "internal/cluster/") || strings.HasPrefix(s.path, "internal/plugin/") || slices.Contains(allowed, s.path) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until"}, sel.Sel.Name) {
				t.Errorf("%v: time.%s reads the wall clock", s.at(n), sel.Sel.Name)
			}
			return true
		})
	}
}

// Given the product's packages, then only internal/logs makes log handlers. A handler
// elsewhere would write durations as plain nanoseconds.
func TestLogLinesAreWrittenByOnePackage(t *testing.T) {
	for _, s := range sources(t) {
		if s.test() || below(s.pkg.short(), "test") || s.pkg.short() == "internal/logs" {
			continue
		}
		for _, handler := range []string{"slog.NewJSONHandler(", "slog.NewTextHandler("} {
			if bytes.Contains(s.text, []byte(handler)) {
				t.Errorf("%s has a handler of its own, not internal/logs'", s.path)
			}
		}
	}
}

// Given the package-level variables, then each is an error value or a table that no code
// writes.
func TestNoGlobalState(t *testing.T) {
	tables := []string{
		"cmd/node-agent.version", "cmd/launcher-shim.version", "cmd/cluster-controller.version", "cmd/kubectl-vmgrace.version", "cmd/kubectl-vmdrain.version", // set by the linker
		"internal/rules/evacuation.verdicts", "internal/rules/evacuation.gates", "internal/rules/evacuation.fields", "internal/rules/evacuation.disruptionRules", "internal/rules/evacuation.budgetRules", "internal/rules/evacuation.evacuationRules", "internal/rules/evacuation.cancelRules", "internal/rules/evacuation.staleRules",
		"internal/rules/migration.controllerRules", "internal/rules/migration.sourceRules", "internal/rules/migration.targetRules", "internal/rules/migration.runTimeKeys", "internal/rules/migration.networks",
		"pkg/grace.rules", "pkg/grace.background", "internal/node/agent.actions", "pkg/grace.sources",
		"test/cluster.configs", "test/kubevirt.launcher", // embedded files
		"pkg/hypervisor/libvirt.loop", // libvirt has one event loop for each process
	}
	for _, s := range sources(t) {
		if s.test() {
			continue
		}
		for _, name := range globals(s.file) {
			if strings.HasPrefix(name, "Err") || strings.HasPrefix(name, "err") || name == "_" {
				continue
			}
			if !slices.Contains(tables, s.pkg.short()+"."+name) {
				t.Errorf("%s: package variable %s", s.path, name)
			}
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%v: func init", s.at(f))
			}
		}
	}
}

func globals(f *ast.File) []string {
	var names []string
	for _, d := range f.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.VAR {
			continue
		}
		for _, spec := range decl.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok && !pattern(v) {
				for _, n := range v.Names {
					names = append(names, n.Name)
				}
			}
		}
	}
	return names
}

// pattern reports whether a variable is a compiled regular expression, which no code can
// change.
func pattern(v *ast.ValueSpec) bool {
	if len(v.Values) != 1 {
		return false
	}
	call, ok := v.Values[0].(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "MustCompile"
}

// Given the names of the tests, then each is short: it says the subject and the behaviour.
// Variants are subtests.
func TestNamesOfTestsAreShort(t *testing.T) {
	const limit = 60
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test() && len(f.Name.Name) > limit {
				t.Errorf("%v: the name of %s has more than %d characters", s.at(f), f.Name.Name, limit)
			}
		}
	}
}
