package plan

import (
	"fmt"
	"strings"

	appspec "tarn.dev/tarn/internal/app/spec"
)

// Code is what kind of error a call ends with, a closed set.
type Code string

// The codes.
const (
	// Invalid: what was sent cannot be, whatever there is.
	Invalid Code = "invalid"
	// NotFound: there is no such thing, or the caller may not see it.
	NotFound Code = "not_found"
	// Conflict: what there is stands in the way.
	Conflict Code = "conflict"
	// Unauthorized: nobody knows who asks.
	Unauthorized Code = "unauthorized"
	// Forbidden: the caller may see it, but not do this.
	Forbidden Code = "forbidden"
	// TooMany: the caller asks too often.
	TooMany Code = "too_many_requests"
	// TooLarge: what was sent is longer than is read.
	TooLarge Code = "too_large"
	// WrongType: what was sent is of a kind that is not understood.
	WrongType Code = "unsupported_media_type"
	// WrongMethod: the path is right, the method is not.
	WrongMethod Code = "method_not_allowed"
	// Timeout: what was sent came too slowly.
	Timeout Code = "timeout"
	// Internal: something failed that the caller has no part in.
	Internal Code = "internal"
)

// Problem is one of several things that are wrong with a file.
type Problem struct {
	Line    int    `json:"line,omitempty" doc:"Line of the file, from 1; absent for JSON"`
	Column  int    `json:"column,omitempty" doc:"Column of the line, from 1"`
	Key     string `json:"key,omitempty" doc:"Key it is about" example:"volumes[0].size"`
	Message string `json:"message" doc:"What is wrong and what to write instead"`
}

// Error is an error with a code. Its message is for whoever called.
type Error struct {
	Code    Code   `json:"code" doc:"Kind of the error" example:"conflict"`
	Message string `json:"message" doc:"What is wrong"`
	// Problems are those of a file, each with its place.
	Problems []Problem `json:"problems,omitempty" doc:"Everything that is wrong with a file, each with its place"`
	// Cause is what Internal came from; not answered.
	Cause error `json:"-"`
}

// Error gives the message.
func (e *Error) Error() string { return e.Message }

// Unwrap gives the cause, nil if there is none.
func (e *Error) Unwrap() error { return e.Cause }

// Errorf makes an error of a code.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// AppNotFound says that there is no application of an id, in the words that are also
// used for one that the caller may not see.
func AppNotFound(id string) *Error { return Errorf(NotFound, "app '%s' not found", id) }

// badFile makes one error of all that is wrong with a file.
func badFile(problems appspec.Problems) *Error {
	return &Error{Code: Invalid, Message: problems.Error(), Problems: answered(problems)}
}

func answered(problems []appspec.Problem) []Problem {
	all := make([]Problem, len(problems))
	for i, p := range problems {
		all[i] = Problem{Line: p.Line, Column: p.Column, Key: p.Key, Message: p.Message}
	}
	return all
}

// together makes one error of the reasons why a deploy is refused.
func together(errs []*Error) *Error {
	if len(errs) == 0 {
		return nil
	}
	all := &Error{Code: errs[0].Code}
	lines := make([]string, len(errs))
	for i, e := range errs {
		lines[i] = e.Message
		if e.Code == Invalid {
			all.Code = Invalid
		}
	}
	all.Message = strings.Join(lines, "\n")
	return all
}
