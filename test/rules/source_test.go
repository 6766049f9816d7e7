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
	path string // below the module's root
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

// No clock: the shell around the core reads it and hands it in.
func TestTheCoreReadsNoClock(t *testing.T) {
	clock := []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "NewTimer", "NewTicker", "Tick"}
	for _, s := range sources(t) {
		if !slices.Contains([]string{"pkg/grace", "internal/evacuation", "internal/migration", "internal/drain", "internal/replacement"}, s.pkg.short()) || s.test() {
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

// The wall clock jumps. What decides about VMs reads CLOCK_MONOTONIC, by
// agent.Clock; the only other readings of package time measure a duration,
// which Go does by its monotonic clock, or say something to people.
func TestTheWallClockDecidesNothing(t *testing.T) {
	allowed := []string{
		"internal/nodeagent/clock.go",       // agent.Clock itself
		"internal/shim/shim.go",             // the trigger's time, which nobody uses
		"internal/shim/process.go",          // the age of a file
		"internal/shim/ask.go",              // how long a request may take
		"pkg/hypervisor/inpod/vm.go",        // how often claims are looked into
		"pkg/hypervisor/libvirt/events.go",  // how long a connection lasted
		"pkg/hypervisor/libvirt/qemulog.go", // which run in QEMU's log, for the outcome
		"pkg/hypervisor/fake/fake.go",       // for tests
		"pkg/hypervisor/drivertest/drivertest.go",
		// Bounds of connections, the lives of certificates, how long a migration takes;
		// what happens to a guest follows from none of them.
		"internal/transfer/identity.go", "internal/transfer/link.go", "internal/transfer/side.go",
		"internal/transfer/source.go", "internal/transfer/sending.go", "internal/transfer/target.go",
		"internal/transfer/messages.go", "internal/transfer/refusals.go", "internal/transfer/uuid.go",
		"internal/kube/migrations.go", // a phase's time, for people
		"internal/kube/migratable.go", // a condition's times, for people
	}
	for _, s := range sources(t) {
		// The API server's times are wall clock times.
		if s.test() || strings.HasPrefix(s.path, "test/") || strings.HasPrefix(s.path, "internal/controller/") || strings.HasPrefix(s.path, "internal/vmdrain/") || slices.Contains(allowed, s.path) {
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

// Elsewhere a handler would write durations as bare nanoseconds.
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

// A package-level variable is an error value or a table that nothing writes.
func TestNoGlobalState(t *testing.T) {
	tables := []string{
		"cmd/node-agent.version", "cmd/launcher-shim.version", "cmd/cluster-controller.version", "cmd/kubectl-vmdrain.version", // set by the linker
		"internal/evacuation.verdicts", "internal/evacuation.gates", "internal/evacuation.disruptionRules", "internal/evacuation.budgetRules", "internal/evacuation.evacuationRules", "internal/evacuation.cancelRules",
		"internal/migration.controllerRules", "internal/migration.sourceRules", "internal/migration.targetRules", "internal/migration.runTimeKeys",
		"pkg/grace.rules", "pkg/grace.background", "internal/agent.actions", "pkg/grace.sources",
		"test/cluster.configs",        // embedded files
		"pkg/hypervisor/libvirt.loop", // libvirt itself has one event loop per process
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

// pattern: a compiled regular expression cannot be changed.
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

// A test's name says its subject and behaviour; variants are subtests.
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
