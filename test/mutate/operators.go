package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
)

// The operators, in the order of maker.node:
//
//	comparison   < and <=, > and >= take each other's place, and all become their opposite
//	logic        && and || take each other's place; !x becomes x
//	arithmetic   + and -, * and /, << and >>, & and | take each other's place, % becomes *,
//	             also before = ; ++ and -- take each other's place
//	constant     an integer becomes one more; true and false take each other's place
//	condition    of an if or a for, where none of the above applies, becomes its opposite
//	body         of an if, an else, a case becomes empty
//	statement    a call, an assignment, ++, --, go, defer, a send, break, continue or an
//	             empty return goes
//	result       a returned value becomes the zero value of its type; a bool its opposite

// operators are the binary operators and what they become. Assignment operators
// become the same with = behind them.
var operators = map[token.Token][]token.Token{
	token.LSS:  {token.LEQ, token.GEQ},
	token.LEQ:  {token.LSS, token.GTR},
	token.GTR:  {token.GEQ, token.LEQ},
	token.GEQ:  {token.GTR, token.LSS},
	token.EQL:  {token.NEQ},
	token.NEQ:  {token.EQL},
	token.LAND: {token.LOR},
	token.LOR:  {token.LAND},
	token.ADD:  {token.SUB},
	token.SUB:  {token.ADD},
	token.MUL:  {token.QUO},
	token.QUO:  {token.MUL},
	token.REM:  {token.MUL},
	token.SHL:  {token.SHR},
	token.SHR:  {token.SHL},
	token.AND:  {token.OR},
	token.OR:   {token.AND},

	token.ADD_ASSIGN: {token.SUB_ASSIGN},
	token.SUB_ASSIGN: {token.ADD_ASSIGN},
	token.MUL_ASSIGN: {token.QUO_ASSIGN},
	token.QUO_ASSIGN: {token.MUL_ASSIGN},
	token.REM_ASSIGN: {token.MUL_ASSIGN},
	token.SHL_ASSIGN: {token.SHR_ASSIGN},
	token.SHR_ASSIGN: {token.SHL_ASSIGN},
	token.AND_ASSIGN: {token.OR_ASSIGN},
	token.OR_ASSIGN:  {token.AND_ASSIGN},
	token.INC:        {token.DEC},
	token.DEC:        {token.INC},
}

// maker makes the mutants of one file.
type maker struct {
	fset     *token.FileSet
	index    int
	source   source
	info     *types.Info
	function string
	mutants  []mutant
}

func mutantsOf(fset *token.FileSet, index int, s source, info *types.Info) []mutant {
	k := &maker{fset: fset, index: index, source: s, info: info}
	for _, decl := range s.file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			k.function = nameOf(d)
			k.walk(d.Body)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok {
					k.function = v.Names[0].Name
					k.walk(v)
				}
			}
		}
	}
	return k.mutants
}

// nameOf returns the name of a function, and Type.Name of a method.
func nameOf(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name + "." + d.Name.Name
		default:
			return d.Name.Name
		}
	}
}

func (k *maker) walk(root ast.Node) {
	ast.Inspect(root, func(node ast.Node) bool {
		if node == nil || k.node(node) {
			return true
		}
		return false
	})
}

// replace adds the mutant that has text instead of what stands from one position
// to another.
func (k *maker) replace(from, to token.Pos, text string) {
	position := k.fset.Position(from)
	m := mutant{
		source:   k.index,
		from:     position.Offset,
		to:       k.fset.Position(to).Offset,
		text:     text,
		position: fmt.Sprintf("%s:%d", filepath.Base(position.Filename), position.Line),
		function: k.function,
	}
	m.describe(k.source.text)
	k.mutants = append(k.mutants, m)
}

func (k *maker) token(at token.Pos, op token.Token) {
	for _, other := range operators[op] {
		k.replace(at, at+token.Pos(len(op.String())), other.String())
	}
}

func (k *maker) opposite(x ast.Expr) {
	k.replace(x.Pos(), x.End(), "!("+k.textOf(x)+")")
}

func (k *maker) textOf(n ast.Node) string {
	return string(k.source.text[k.fset.Position(n.Pos()).Offset:k.fset.Position(n.End()).Offset])
}

// node adds the mutants of one node, and reports whether to look at its children.
func (k *maker) node(node ast.Node) bool {
	switch n := node.(type) {
	case *ast.BinaryExpr:
		if k.constant(n) == nil { // the parts of a constant are mutated, and the joints would do the same
			k.token(n.OpPos, n.Op)
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			k.replace(n.Pos(), n.X.Pos(), "")
		}
	case *ast.IncDecStmt:
		k.token(n.TokPos, n.Tok)
		k.drop(n)
	case *ast.AssignStmt:
		k.token(n.TokPos, n.Tok)
		if n.Tok != token.DEFINE {
			k.drop(n)
		}
	case *ast.BasicLit:
		if v := k.constant(n); n.Kind == token.INT && v != nil {
			k.replace(n.Pos(), n.End(), constant.BinaryOp(constant.MakeFromLiteral(n.Value, n.Kind, 0), token.ADD, constant.MakeInt64(1)).ExactString())
		}
	case *ast.Ident:
		if other, ok := map[string]string{"true": "false", "false": "true"}[n.Name]; ok && k.info.Uses[n] == types.Universe.Lookup(n.Name) {
			k.replace(n.Pos(), n.End(), other)
		}
	case *ast.IfStmt:
		k.condition(n.Cond)
		k.empty(n.Body.Lbrace+1, n.Body.Rbrace, n.Body.List)
		if block, ok := n.Else.(*ast.BlockStmt); ok {
			k.empty(block.Lbrace+1, block.Rbrace, block.List)
		}
	case *ast.ForStmt:
		if n.Cond != nil {
			k.condition(n.Cond)
		}
	case *ast.CaseClause:
		k.empty(n.Colon+1, n.End(), n.Body)
	case *ast.CommClause:
		k.empty(n.Colon+1, n.End(), n.Body)
	case *ast.ExprStmt, *ast.SendStmt, *ast.GoStmt, *ast.DeferStmt:
		if !k.tuning(n) {
			k.drop(n.(ast.Stmt))
		}
	case *ast.BranchStmt:
		if n.Tok == token.BREAK || n.Tok == token.CONTINUE {
			k.drop(n)
		}
	case *ast.ReturnStmt:
		if len(n.Results) == 0 {
			k.drop(n)
		}
		for _, x := range n.Results {
			k.result(x)
		}
	case *ast.CallExpr:
		return k.call(n)
	}
	return true
}

// condition makes the opposite of a condition to which no other operator applies.
func (k *maker) condition(x ast.Expr) {
	switch n := ast.Unparen(x).(type) {
	case *ast.BinaryExpr:
		return
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			return
		}
	}
	k.opposite(x)
}

// empty makes a body empty, unless the same is done by dropping its only statement.
func (k *maker) empty(from, to token.Pos, body []ast.Stmt) {
	if len(body) > 1 || len(body) == 1 && !droppable(body[0]) {
		k.replace(from, to, "")
	}
}

func (k *maker) drop(s ast.Stmt) { k.replace(s.Pos(), s.End(), "") }

func droppable(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.AssignStmt:
		return s.Tok != token.DEFINE
	case *ast.ReturnStmt:
		return len(s.Results) == 0
	case *ast.ExprStmt, *ast.SendStmt, *ast.GoStmt, *ast.DeferStmt, *ast.IncDecStmt, *ast.BranchStmt:
		return true
	}
	return false
}

// result makes a returned value zero. What is zero already is left to the other
// operators, and so is a comparison.
func (k *maker) result(x ast.Expr) {
	tv := k.info.Types[x]
	if tv.Type == nil || tv.IsNil() {
		return
	}
	switch t := tv.Type.Underlying().(type) {
	case *types.Basic:
		switch {
		case t.Info()&types.IsBoolean != 0 && tv.Value == nil:
			k.condition(x)
		case t.Info()&types.IsNumeric != 0 && (tv.Value == nil || constant.Sign(tv.Value) != 0):
			k.replace(x.Pos(), x.End(), "0")
		case t.Info()&types.IsString != 0 && (tv.Value == nil || constant.StringVal(tv.Value) != ""):
			k.replace(x.Pos(), x.End(), `""`)
		}
	case *types.Pointer, *types.Slice, *types.Map, *types.Chan, *types.Signature, *types.Interface:
		k.replace(x.Pos(), x.End(), "nil")
	case *types.Struct:
		if lit, ok := x.(*ast.CompositeLit); ok && len(lit.Elts) == 0 {
			return
		}
		zero := types.TypeString(tv.Type, func(p *types.Package) string {
			if p.Name() == k.source.file.Name.Name {
				return ""
			}
			return p.Name()
		})
		k.replace(x.Pos(), x.End(), zero+"{}")
	}
}

// call leaves out what cannot be judged by the result: the arguments of errors and
// log lines, whose texts are read by people, and sizes that only save an allocation.
// It reports whether to look at the children of the call.
func (k *maker) call(n *ast.CallExpr) bool {
	if k.texts(n) || k.tuning(&ast.ExprStmt{X: n}) {
		return false
	}
	if id, ok := n.Fun.(*ast.Ident); ok && id.Name == "make" {
		t := k.info.Types[n].Type
		sized := 2 // the type and the length; the rest is a capacity
		if t != nil {
			if _, ok := t.Underlying().(*types.Map); ok {
				sized = 1
			}
		}
		for _, arg := range n.Args[:min(sized, len(n.Args))] {
			k.walk(arg)
		}
		return false
	}
	return true
}

// texts reports whether a call makes a text for people: an error, a log line, a panic.
func (k *maker) texts(n *ast.CallExpr) bool {
	name := k.textOf(n.Fun)
	if slices.Contains([]string{"panic", "errors.New", "fmt.Errorf", "status.Error", "status.Errorf"}, name) {
		return true
	}
	selector, ok := n.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	t := k.info.Types[selector.X].Type
	return t != nil && strings.TrimPrefix(t.String(), "*") == "log/slog.Logger"
}

// tuning reports whether a statement only saves an allocation.
func (k *maker) tuning(n ast.Node) bool {
	s, ok := n.(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := s.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	selector, ok := call.Fun.(*ast.SelectorExpr)
	return ok && (selector.Sel.Name == "Grow" || k.textOf(call.Fun) == "slices.Clip")
}

// constant returns the value of a constant expression, or nil.
func (k *maker) constant(x ast.Expr) constant.Value { return k.info.Types[x].Value }
