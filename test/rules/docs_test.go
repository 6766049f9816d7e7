package rules

import (
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// documents returns the text of every document of the project, by its path from the root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	read := func(path string) {
		text, err := os.ReadFile(filepath.Join("../..", path))
		if err != nil {
			t.Fatal(err)
		}
		texts[path] = string(text)
	}
	for _, path := range []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"} {
		read(path)
	}
	err := fs.WalkDir(os.DirFS("../.."), "docs", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			read(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

var (
	namedTest = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Za-z0-9]+)(\\.\\.\\.)?`")
	test      = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Za-z0-9]+)\(`)
	link      = regexp.MustCompile(`\]\(([^)#:]+)[^):]*\)`)
)

// tests returns the names of all tests, whatever build constraint their files have.
func tests(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, p := range list(t, "./...") {
		files, err := filepath.Glob(filepath.Join(p.Dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range test.FindAllStringSubmatch(string(text), -1) {
				all = append(all, match[1])
			}
		}
	}
	return all
}

// Given the tests that documents name, then each of them exists. Otherwise a document would
// promise something that no test checks.
func TestEveryTestThatADocumentNamesExists(t *testing.T) {
	all := tests(t)
	for path, text := range documents(t) {
		for _, match := range namedTest.FindAllStringSubmatch(text, -1) {
			name, cut := match[1], match[2] != ""
			if !slices.ContainsFunc(all, func(n string) bool { return n == name || cut && strings.HasPrefix(n, name) }) {
				t.Errorf("%s names %s, which does not exist", path, name)
			}
		}
	}
}

// Given the tests that the Makefile names, then each of them exists. Otherwise a target would
// pass without a test.
func TestEveryTestThatTheMakefileNamesExists(t *testing.T) {
	text, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	all := tests(t)
	for _, match := range regexp.MustCompile(`[^.\w](Test[A-Z]\w+)`).FindAllStringSubmatch(string(text), -1) {
		if !slices.ContainsFunc(all, func(n string) bool { return strings.HasPrefix(n, match[1]) }) {
			t.Errorf("the Makefile names %s, which does not exist", match[1])
		}
	}
}

func TestEveryLinkOfADocumentLeadsSomewhere(t *testing.T) {
	for path, text := range documents(t) {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join("../..", filepath.Dir(path), match[1])); err != nil {
				t.Errorf("%s links to %s: %v", path, match[1], err)
			}
		}
	}
}

// Given the project's packages, then docs/architecture.md shows each of them in its list of
// packages.
func TestEveryPackageIsOnTheMap(t *testing.T) {
	_, text, _ := strings.Cut(documents(t)["docs/architecture.md"], "## Packages and what they import")
	text, _, _ = strings.Cut(text, "\n## ")
	for _, p := range list(t, "./api/...", "./cmd/...", "./internal/...", "./pkg/...") {
		name := filepath.Base(p.ImportPath)
		if name != "fake" && name != "drivertest" && !regexp.MustCompile(`\b`+name+`\b`).MatchString(text) {
			t.Errorf("docs/architecture.md does not show %s", p.short())
		}
	}
}

// Given the packages and files that these rules name, then they exist. A rule about a
// missing one would check nothing.
func TestTheRulesNameOnlyWhatExists(t *testing.T) {
	inQuotes := regexp.MustCompile(`"((?:api|internal|pkg)/[a-zA-Z0-9/.]+)"`)
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range inQuotes.FindAllStringSubmatch(string(text), -1) {
			path := match[1]
			if !strings.HasSuffix(path, ".go") {
				path, _, _ = strings.Cut(path, ".") // the name of a variable in a package
			}
			if _, err := os.Stat(filepath.Join("../..", path)); err != nil {
				t.Errorf("%s speaks of %s: %v", file, path, err)
			}
		}
	}
}

// Given the causes and outcomes that a user reads in a status, a metric or an annotation,
// then a document explains each of them.
func TestEachCauseAndOutcomeIsInTheDocuments(t *testing.T) {
	var all strings.Builder
	for _, text := range documents(t) {
		all.WriteString(text)
	}
	found := 0
	for _, s := range sources(t) {
		if s.test() || !slices.Contains([]string{"pkg/grace", "internal/rules/evacuation"}, s.pkg.short()) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			kind, _ := spec.Type.(*ast.Ident)
			cause := kind == nil && strings.HasPrefix(spec.Names[0].Name, "Cause") && !strings.HasSuffix(spec.Names[0].Name, "Annotation")
			value, ok := spec.Values[0].(*ast.BasicLit)
			if !ok || value.Kind != token.STRING || !cause && (kind == nil || kind.Name != "Cause" && kind.Name != "Outcome") {
				return true
			}
			found++
			text, err := strconv.Unquote(value.Value)
			if err != nil || !strings.Contains(all.String(), "`"+text+"`") {
				t.Errorf("%v: no document has `%s`, %v", s.at(n), text, err)
			}
			return true
		})
	}
	if found < 14 {
		t.Errorf("%d causes and outcomes were found", found)
	}
}
