package jinja

// expr is a node with a value. stmt is a node with an effect: text, a variable.
// Nodes are immutable after parsing; all state lives in the evaluator.
type expr interface {
	eval(e *evaluator) any
}

type stmt interface {
	exec(e *evaluator)
}

type (
	constExpr struct{ value any }
	nameExpr  struct {
		pos  int
		name string
	}
	// listExpr, tupleExpr and dictExpr are the literals [..], (..) and {..}.
	listExpr  struct{ items []expr }
	tupleExpr struct{ items []expr }
	dictExpr  struct {
		pos          int
		keys, values []expr
	}
	attrExpr struct {
		pos    int
		object expr
		name   string
	}
	itemExpr struct {
		pos           int
		object, index expr
	}
	// sliceExpr is a:b:c between brackets; absent parts are nil.
	sliceExpr struct {
		start, stop, step expr
	}
	callExpr struct {
		pos    int
		callee expr
		args   *argExprs
	}
	filterExpr struct {
		pos    int
		input  expr // nil inside a filter block: the block's text
		name   string
		filter *filterDef // nil: unknown, an error only when it is reached
		args   *argExprs
	}
	testExpr struct {
		pos    int
		input  expr
		name   string
		test   *testDef
		args   *argExprs
		negate bool
	}
	unaryExpr struct {
		pos     int
		op      tokenKind
		operand expr
	}
	binaryExpr struct {
		pos         int
		op          tokenKind
		left, right expr
	}
	concatExpr struct {
		pos   int
		parts []expr
	}
	compareExpr struct {
		pos   int
		first expr
		ops   []compareOp
	}
	notExpr  struct{ operand expr }
	logicOr  struct{ left, right expr }
	logicAnd struct{ left, right expr }
	condExpr struct {
		pos           int
		test, yes, no expr // no may be nil
	}
)

type compareOp struct {
	op    comparison
	right expr
}

// argExprs are the arguments of a call as written.
type argExprs struct {
	pos      []expr
	names    []string
	values   []expr
	star     expr // *args
	starStar expr // **kwargs
}

type (
	textStmt struct {
		text string
	}
	outputStmt struct {
		pos   int
		value expr
	}
	setStmt struct {
		pos    int
		target target
		value  expr
	}
	setBlockStmt struct {
		pos    int
		target target
		filter *filterExpr
		body   []stmt
	}
	ifStmt struct {
		branches []ifBranch
		orElse   []stmt
	}
	forStmt struct {
		pos       int
		target    target
		iter      expr
		test      expr
		recursive bool
		body      []stmt
		orElse    []stmt
	}
	withStmt struct {
		pos     int
		targets []target
		values  []expr
		body    []stmt
	}
	macroStmt struct {
		macro *macroDef
	}
	callStmt struct {
		pos    int
		call   *callExpr
		caller *macroDef
	}
	filterStmt struct {
		filter *filterExpr
		body   []stmt
	}
	blockStmt struct {
		name   string
		scoped bool
		body   []stmt
	}
	scopeStmt struct {
		body []stmt
	}
	// loaderStmt stands for include, import, from and extends.
	loaderStmt struct {
		pos int
		tag string
	}
)

type ifBranch struct {
	test expr
	body []stmt
}

// target is what an assignment writes to: a name, an attribute of a namespace, or several targets.
type target struct {
	pos   int
	name  string
	attr  string // not empty: name.attr of a namespace
	tuple []target
	multi bool
}

// macroDef is the fixed part of a macro or of a call block's body.
type macroDef struct {
	pos        int
	name       string // empty for a call block
	params     []string
	defaults   []expr // of the last len(defaults) params
	body       []stmt
	usesCaller bool
	usesKwargs bool
	usesVar    bool
}
