// Command openapi validates the description of the REST API, on standard input, against the schema
// of OpenAPI 3.1, and prints the errors. It is a module of its own, because nothing else needs its
// dependencies. It must not know the described API.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
)

func main() {
	if err := run(os.Stdin, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "openapi:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	text, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("reading the document: %w", err)
	}
	document, err := libopenapi.NewDocument(text)
	if err != nil {
		return fmt.Errorf("this is not an OpenAPI document: %w", err)
	}
	if _, errs := document.BuildV3Model(); len(errs) > 0 {
		return fmt.Errorf("the document is not valid: %v", errs)
	}
	judge, errs := validator.NewValidator(document)
	if len(errs) > 0 {
		return fmt.Errorf("the document cannot be checked: %v", errs)
	}
	valid, problems := judge.ValidateDocument()
	for _, problem := range problems {
		fmt.Fprintf(out, "%d:%d: %s: %s\n", problem.SpecLine, problem.SpecCol, problem.Message, problem.Reason)
		for _, detail := range problem.SchemaValidationErrors {
			fmt.Fprintf(out, "  %s: %s\n", detail.Location, detail.Reason)
		}
	}
	if !valid {
		return fmt.Errorf("the document has %d problems", len(problems))
	}
	return nil
}
