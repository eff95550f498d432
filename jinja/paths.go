package jinja

import (
	"slices"
	"strings"
)

const (
	// maxPath bounds the parts of a path, so that a long chain of keys costs no more than its length.
	maxPath = 8
	// pathSeparator joins the parts of a path. No key that matters contains it.
	pathSeparator = "\x00"
)

// narrow notes that a read of object is a read of one key of it, if both are plain from the source.
func (p *parser) narrow(object, key expr) {
	before, ok := plainPath(object)
	name, isText := constText(key)
	if !ok || !isText || len(before) >= maxPath {
		return
	}
	p.paths[strings.Join(before, pathSeparator)]--
	p.paths[strings.Join(append(before, name), pathSeparator)]++
}

// plainPath is the path of an expression that is a name and constant keys below it. The result of a
// function has the path of the function's name.
func plainPath(x expr) (path []string, ok bool) {
	for range maxPath {
		switch at := x.(type) {
		case *nameExpr:
			path = append(path, at.name)
			slices.Reverse(path)
			return path, true
		case *attrExpr:
			path, x = append(path, at.name), at.object
		case *itemExpr:
			key, ok := constText(at.index)
			if !ok {
				return nil, false
			}
			path, x = append(path, key), at.object
		case *callExpr:
			if _, named := at.callee.(*nameExpr); !named {
				return nil, false
			}
			x = at.callee
		default:
			return nil, false
		}
	}
	return nil, false
}

func constText(x expr) (text string, ok bool) {
	c, isConst := x.(*constExpr)
	if !isConst {
		return "", false
	}
	text, ok = c.value.(string)
	return text, ok
}
