package problem_test

import (
	"testing"

	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

func TestString(t *testing.T) {
	for want, p := range map[string]problem.Problem{
		"rule":                            {Line: 1, Rule: "rule"},
		`service "a": rule`:               {Service: `"a"`, Rule: "rule"},
		"service services[0]: name: rule": {Line: 2, Service: "services[0]", Field: "name", Rule: "rule"},
	} {
		if got := p.String(); got != want {
			t.Errorf("%+v is %q, expected %q", p, got, want)
		}
	}
}

func TestSummary(t *testing.T) {
	several := func(n int) []problem.Problem {
		var problems []problem.Problem
		for i := range n {
			problems = append(problems, problem.Problem{Line: i, Rule: "rule"})
		}
		return problems
	}
	for _, tt := range []struct {
		given, more int
		want        string
	}{
		{0, 0, ""},
		{2, 0, "rule; line 1: rule"},
		{5, 0, "rule; line 1: rule; line 2: rule; line 3: rule; line 4: rule"},
		{7, 0, "rule; line 1: rule; line 2: rule; line 3: rule; line 4: rule; and 2 more"},
		{7, 3, "rule; line 1: rule; line 2: rule; line 3: rule; line 4: rule; and at least 5 more"},
	} {
		if got := problem.Summary(several(tt.given), tt.more); got != tt.want {
			t.Errorf("%d problems and %d more are %q, expected %q", tt.given, tt.more, got, tt.want)
		}
		if err := problem.Error(several(tt.given), tt.more); (err == nil) != (tt.given == 0) || err != nil && err.Error() != tt.want {
			t.Errorf("the error of %d problems and %d more is %v, expected %q", tt.given, tt.more, err, tt.want)
		}
	}
}

func TestListKeepsWhatItHasRoomFor(t *testing.T) {
	list := problem.List{Room: 2}
	for i := range 5 {
		if full := list.IsFull(); full != (i >= 2) {
			t.Errorf("after %d problems Full is %t", i, full)
		}
		list.Add(problem.Problem{Line: i})
	}
	if len(list.Kept) != 2 || list.Kept[1].Line != 1 || list.More != 3 {
		t.Errorf("list is %+v, expected the first 2 of 5 problems", list)
	}
}
