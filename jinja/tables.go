package jinja

// The tables of names in the language. They are filled in init, because their functions use the
// tables, which Go does not allow in an initialiser. Nothing changes them afterwards.
var (
	filterTable map[string]*filterDef
	testTable   map[string]*testDef
	globalTable map[string]any

	strMethods, dictMethods, listMethods, intMethods       map[string]*methodDef
	floatMethods, bytesMethods, loopMethods, cyclerMethods map[string]*methodDef
)

func init() {
	filterTable = map[string]*filterDef{}
	for _, group := range [][]*filterDef{textFilters(), listFilters(), pickFilters(), valueFilters()} {
		for _, f := range group {
			filterTable[f.name] = f
		}
	}
	for alias, name := range map[string]string{"d": "default", "count": "length", "e": "escape"} {
		filterTable[alias] = filterTable[name]
	}
	testTable = makeTests()
	globalTable = makeGlobals()
	strMethods = table(append(caseMethods(), cutMethods()...)...)
	dictMethods, listMethods = makeDictMethods(), makeListMethods()
	intMethods, floatMethods = makeIntMethods(), makeFloatMethods()
	bytesMethods, loopMethods, cyclerMethods = makeBytesMethods(), makeLoopMethods(), makeCyclerMethods()
}

// absentFilters are filters of Jinja that this package leaves out, with the reason.
var absentFilters = map[string]string{
	"urlize": "it makes HTML, and the output here is never HTML",
}

// absentGlobals are global functions of Jinja that this package leaves out, with the reason.
var absentGlobals = map[string]string{
	"lipsum": "it makes random text for HTML pages",
}
