package main

import (
	"fmt"
	"slices"
	"strings"
)

// The modes.
const (
	modeCeiling  = "ceiling"
	modeMatch    = "match"
	modePrebound = "prebound"
	modeDynamic  = "dynamic"
	modeNoise    = "noise"
)

func modeNames() []string {
	return []string{modeCeiling, modeMatch, modePrebound, modeDynamic, modeNoise}
}

// subject is a binder to measure.
type subject struct {
	name string
	// up are the arguments of tarn-cluster that select this binder.
	up []string
	// process is the component whose processor time counts as its cost.
	process string
}

const (
	controllerManager = "kube-controller-manager"
	tarnController    = "tarn-controller"
	thisProgram       = "bench"

	// slowSubject is the subject that keeps its rate limits.
	slowSubject = "default"
)

// unlimited lifts kube-controller-manager's rate limits. Every cluster has it except that of
// subject default, Tarn's own cluster included. Its other controllers count too: the one for
// expansion reads each volume once its claim is Bound.
var unlimited = []string{"--stock", "--kube-controller-manager-arg=--kube-api-qps=5000", "--kube-controller-manager-arg=--kube-api-burst=10000"}

// withoutBinder is a cluster without a binder.
var withoutBinder = append(slices.Clone(unlimited), "--kube-controller-manager-arg=--controllers=*,-persistentvolume-binder-controller")

// subjects are all subjects. Without a binder, the API server's own ceiling is measured, and this
// program itself as the ideal binder.
var subjects = []subject{
	{name: "nobody", process: controllerManager, up: withoutBinder},
	{name: "ideal", process: thisProgram, up: withoutBinder},
	{name: slowSubject, process: controllerManager, up: []string{"--stock"}},
	{name: "lifted", process: controllerManager, up: unlimited},
	{name: "tarn", process: tarnController, up: []string{"--binder=tarn", "--protection=kubernetes", "--without-api"}},
}

func subjectNamed(name string) (subject, bool) {
	at := slices.IndexFunc(subjects, func(s subject) bool { return s.name == name })
	if at < 0 {
		return subject{}, false
	}
	return subjects[at], true
}

// planned is one run to come.
type planned struct {
	subject subject
	mode    string
	n       int
	// turn is the number of the turn, from 1.
	turn int
}

func (p planned) String() string {
	if p.mode == modeCeiling {
		return "the API server's ceiling"
	}
	text := fmt.Sprintf("%s, %d claims, bound by %s", p.mode, p.n, p.subject.name)
	if p.turn > 1 {
		text += fmt.Sprintf(", turn %d", p.turn)
	}
	return text
}

// schedule lists the runs in rounds; the runs of a round are parallel. Within a mode and size, one
// subject follows the other, so that slow changes of the machine affect all of them. The runs with
// default flags come last, with all modes of a size in parallel. At 20 requests per second, each
// leaves the processors idle for nearly all of its many minutes.
//
// Each turn begins with another subject, so that changes within a mode and size do not always
// affect the same one.
func schedule(s settings) ([][]planned, error) {
	for _, mode := range s.modes {
		if !slices.Contains(modeNames(), mode) {
			return nil, fmt.Errorf("mode %q: use any of %s", mode, strings.Join(modeNames(), ", "))
		}
	}
	var quick, slow []subject
	for _, name := range s.subjects {
		found, ok := subjectNamed(name)
		switch {
		case !ok || name == subjects[0].name:
			return nil, fmt.Errorf("subject %q: use any of default, lifted, ideal, tarn", name)
		case name == slowSubject:
			slow = append(slow, found)
		default:
			quick = append(quick, found)
		}
	}
	var rounds [][]planned
	for turn := range s.turns {
		for _, mode := range s.modes {
			rounds = append(rounds, oneMode(rotated(quick, turn), mode, s.sizes, turn+1)...)
		}
	}
	for _, n := range s.slowSizes {
		var round []planned
		for _, mode := range s.modes {
			for _, one := range slow {
				if mode != modeCeiling {
					round = append(round, planned{one, mode, n, 1})
				}
			}
		}
		if len(round) > 0 {
			rounds = append(rounds, round)
		}
	}
	return rounds, nil
}

// rotated gives the subjects in a circle, from the given index on.
func rotated(all []subject, first int) []subject {
	if len(all) == 0 {
		return nil
	}
	first %= len(all)
	return slices.Concat(all[first:], all[:first])
}

// oneMode lists the runs of one mode in one turn.
func oneMode(quick []subject, mode string, sizes []int, turn int) [][]planned {
	if mode == modeCeiling {
		return [][]planned{{{subject: subjects[0], mode: mode, turn: turn}}}
	}
	var rounds [][]planned
	for _, n := range sizes {
		for _, one := range quick {
			rounds = append(rounds, []planned{{one, mode, n, turn}})
		}
	}
	return rounds
}
